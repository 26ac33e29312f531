//! Runs this process as the peer of a bench, until its caller disconnects.

use anyhow::{Context as _, Result, bail};

use crate::benches::BENCHES;
use crate::peer::{Asked, Context, TTL};

/// Runs as a peer: the words are the bench, the peer and the endpoints.
pub(crate) async fn serve(words: Vec<String>) -> Result<()> {
    let [bench, peer, endpoints] = &words[..] else {
        bail!("peer BENCH PEER ENDPOINTS");
    };
    let context = Context {
        peer: peer.clone(),
        endpoints: endpoints.split(',').map(str::to_owned).collect(),
        ttl: TTL,
    };
    let bench = BENCHES.iter().find(|known| known.name == bench);
    let bench = bench.context("no such bench")?;
    let mut asked = Asked::by_stdio();
    asked.answer(Ok(Vec::new()))?;
    (bench.peer)(context, asked).await
}
