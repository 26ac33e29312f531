//! Keeps the beginning of a request's body, so that the request can be sent again.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use eldest::BoxError;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

/// The body of a request on its way to a node.
pub struct Body(UnsyncBoxBody<Bytes, BoxError>);

impl Body {
    /// Makes a body from any other body.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(body.map_err(Into::into).boxed_unsync())
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

/// A body that each attempt to send the request reads completely: first the part that earlier attempts have read, then
/// the rest.
///
/// It keeps at most `limit` bytes. Once more have passed, the body cannot be sent again.
pub(crate) struct Replay(Arc<Mutex<Recording>>);

struct Recording {
    source: Body,
    frames: Vec<Kept>,
    bytes: usize,
    limit: usize,
    /// True if the source has ended.
    ended: bool,
    /// True if the source failed, or gave more than the limit.
    gone: bool,
    /// The attempt that may read; earlier ones may no longer take parts of the body.
    attempt: u64,
}

#[derive(Clone)]
enum Kept {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Replay {
    pub(crate) fn new(source: Body, limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Recording {
            source,
            frames: Vec::new(),
            bytes: 0,
            limit,
            ended: false,
            gone: false,
            attempt: 0,
        })))
    }

    /// Returns true if another attempt would send all of the body.
    pub(crate) fn is_whole(&self) -> bool {
        !lock(&self.0).gone
    }

    /// Returns the body of the next attempt. Earlier bodies fail when they are read further.
    pub(crate) fn next(&self) -> Body {
        let mut recording = lock(&self.0);
        recording.attempt += 1;
        Body::new(Attempt {
            recording: Arc::clone(&self.0),
            number: recording.attempt,
            at: 0,
        })
    }
}

fn lock(recording: &Mutex<Recording>) -> MutexGuard<'_, Recording> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Attempt {
    recording: Arc<Mutex<Recording>>,
    number: u64,
    /// How many of the kept frames this body has given.
    at: usize,
}

impl Recording {
    fn poll_source(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = match ready!(Pin::new(&mut self.source).poll_frame(cx)) {
            None => {
                self.ended = true;
                return Poll::Ready(None);
            }
            Some(Err(error)) => {
                self.lose();
                return Poll::Ready(Some(Err(error)));
            }
            Some(Ok(frame)) => frame,
        };
        if let Some(data) = frame.data_ref() {
            self.keep(data.len(), Kept::Data(data.clone()));
        } else if let Some(trailers) = frame.trailers_ref() {
            self.keep(0, Kept::Trailers(trailers.clone()));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn keep(&mut self, bytes: usize, frame: Kept) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limit {
            self.lose();
        }
        if !self.gone {
            self.frames.push(frame);
        }
    }

    fn lose(&mut self) {
        self.gone = true;
        self.frames = Vec::new();
    }

    /// Returns the number of kept bytes from there on.
    fn ahead(&self, at: usize) -> u64 {
        let ahead = self.frames.get(at..).unwrap_or_default().iter();
        let length = |kept: &Kept| match kept {
            Kept::Data(data) => data.len() as u64,
            Kept::Trailers(_) => 0,
        };
        ahead.map(length).sum()
    }
}

impl HttpBody for Attempt {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let mut recording = lock(&this.recording);
        if recording.attempt != this.number {
            return Poll::Ready(Some(
                Err("the request is sent again to another node".into()),
            ));
        }
        if let Some(kept) = recording.frames.get(this.at).cloned() {
            this.at += 1;
            return Poll::Ready(Some(Ok(match kept {
                Kept::Data(data) => Frame::data(data),
                Kept::Trailers(trailers) => Frame::trailers(trailers),
            })));
        }
        let frame = ready!(recording.poll_source(cx));
        this.at = recording.frames.len();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let recording = lock(&self.recording);
        let all = self.at >= recording.frames.len();
        all && (recording.ended || recording.source.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let recording = lock(&self.recording);
        let ahead = recording.ahead(self.at);
        if recording.ended {
            return SizeHint::with_exact(ahead);
        }
        let rest = recording.source.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(ahead + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(ahead + upper);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, stream};
    use http_body_util::{Full, StreamBody};

    use super::*;

    fn frames(parts: &'static [&'static str]) -> Body {
        let parts = parts
            .iter()
            .map(|part| Ok::<_, BoxError>(Frame::data(Bytes::from_static(part.as_bytes()))));
        Body::new(StreamBody::new(stream::iter(parts)))
    }

    fn rest(body: Body) -> Result<String, BoxError> {
        let bytes = body
            .collect()
            .now_or_never()
            .expect("nothing waits")?
            .to_bytes();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn first(body: &mut Body) -> String {
        let frame = body.frame().now_or_never().unwrap().unwrap().unwrap();
        String::from_utf8_lossy(frame.data_ref().unwrap()).into_owned()
    }

    #[test]
    fn each_attempt_sends_all_of_the_body() {
        let replay = Replay::new(frames(&["a", "b", "c"]), 3);
        let mut broken = replay.next();
        assert_eq!(first(&mut broken), "a");
        assert_eq!(rest(replay.next()).unwrap(), "abc");
        assert_eq!(rest(replay.next()).unwrap(), "abc");
        assert!(replay.is_whole());
    }

    #[test]
    fn an_attempt_that_another_replaced_takes_nothing_from_it() {
        let replay = Replay::new(frames(&["a", "b"]), 64);
        let mut old = replay.next();
        assert_eq!(first(&mut old), "a");
        let new = replay.next();
        rest(old).expect_err("the other one reads now");
        assert_eq!(rest(new).unwrap(), "ab");
    }

    #[test]
    fn a_body_beyond_the_limit_passes_once() {
        let replay = Replay::new(frames(&["ab", "cd", "ef"]), 3);
        assert_eq!(rest(replay.next()).unwrap(), "abcdef");
        assert!(!replay.is_whole());
    }

    #[test]
    fn trailers_are_sent_again_and_failures_are_not_hidden() {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, "x".parse().unwrap())]);
        let frames = [
            Ok(Frame::data(Bytes::from_static(b"a"))),
            Ok(Frame::trailers(trailers.clone())),
        ];
        let body = Body::new(StreamBody::new(stream::iter(
            frames.map(|frame: Result<_, BoxError>| frame),
        )));
        let replay = Replay::new(body, 64);
        for _ in 0..2 {
            let all = replay.next().collect().now_or_never().unwrap().unwrap();
            assert_eq!(all.trailers(), Some(&trailers));
        }
        let broken = stream::iter([Err::<Frame<Bytes>, _>(BoxError::from("broken"))]);
        let replay = Replay::new(Body::new(StreamBody::new(broken)), 64);
        rest(replay.next()).expect_err("it broke");
        assert!(!replay.is_whole(), "its rest is unknown");
    }

    #[test]
    fn each_attempt_knows_the_length_if_the_body_does() {
        let replay = Replay::new(Body::new(Full::new(Bytes::from_static(b"abc"))), 64);
        for _ in 0..2 {
            let mut body = replay.next();
            assert_eq!(body.size_hint().exact(), Some(3));
            assert!(!body.is_end_stream());
            first(&mut body);
            assert!(body.is_end_stream());
        }
        let empty = Replay::new(Body::new(http_body_util::Empty::new()), 64);
        assert!(empty.next().is_end_stream());
    }
}
