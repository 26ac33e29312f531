//! Starts a headless Chromium, controls it through the `DevTools` protocol over a pair of pipes, and collects its
//! complaints. Pipes leave no port that others could use, and the browser ends when its pipe closes, however the test
//! ends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use eldest_fixtures::tools::tool;
use eldest_testing::eventually;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

use crate::shared::{Result, SOON};

/// Chromium reads its commands at descriptor 3 and answers at 4; its other output goes to its log.
const PIPES: &str = r#"exec "$@" 3<&0 4>&1 0</dev/null 1>&2"#;

/// Chromium runs as root only with `--no-sandbox`. The other options keep out everything but the page: the network, the
/// user's profile, a graphics card.
const OPTIONS: [&str; 7] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
];

/// Chromium cancels requests, to this machine too, when a network appears or goes: tests with containers create some.
const NETWORK_CHANGED: &str = "ERR_NETWORK_CHANGED";
/// The events that count as complaints: of the console, exceptions, the browser's own, and breaches of the policy.
const COMPLAINTS: [&str; 4] = [
    "Runtime.consoleAPICalled",
    "Runtime.exceptionThrown",
    "Log.entryAdded",
    "Audits.issueAdded",
];

/// The browser's events, and the requests that wait for an answer.
#[derive(Default)]
struct Said {
    events: Vec<Value>,
    waiting: HashMap<u64, oneshot::Sender<Value>>,
}

/// A browser with one page.
pub(crate) struct Browser {
    commands: ChildStdin,
    said: Arc<Mutex<Said>>,
    last: u64,
    /// The session of the one page.
    session: Option<String>,
    _child: Child,
    _profile: TempDir,
}

/// Returns a configuration with the system's fonts and those that were unpacked together with the browser.
fn fonts_of(program: &Path) -> String {
    let own = program
        .ancestors()
        .nth(3)
        .unwrap_or(program)
        .join("share/fonts");
    format!(
        "<fontconfig><include ignore_missing=\"yes\">/etc/fonts/fonts.conf</include><dir>{}</dir></fontconfig>",
        own.display()
    )
}

fn lock(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Browser {
    /// Returns `None` if tests with a browser are not wanted.
    pub(crate) async fn start() -> Result<Option<Self>> {
        let Some(chromium) = tool("chromium", "chromium") else {
            return Ok(None);
        };
        let profile = tempfile::tempdir()?;
        let fonts = profile.path().join("fonts.conf");
        std::fs::write(&fonts, fonts_of(Path::new(chromium.get_program())))?;
        let mut command = Command::new("sh");
        command.args(["-c", PIPES, "sh"]);
        command.arg(chromium.get_program()).args(OPTIONS);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.env("FONTCONFIG_FILE", fonts);
        for (name, value) in chromium.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let log = std::fs::File::create(profile.path().join("log"))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(log).kill_on_drop(true);
        let mut child = command.spawn()?;
        let answers = child.stdout.take().ok_or("its answers")?;
        let said = Arc::new(Mutex::new(Said::default()));
        tokio::spawn(read(answers, Arc::clone(&said)));
        let mut browser = Self {
            commands: child.stdin.take().ok_or("its commands")?,
            said,
            last: 0,
            session: None,
            _child: child,
            _profile: profile,
        };
        let target = json!({ "url": "about:blank" });
        let target = browser.call("Target.createTarget", target).await?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach).await?;
        browser.session = attached["sessionId"].as_str().map(ToOwned::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "Audits", "DOM"] {
            browser.call(&format!("{domain}.enable"), json!({})).await?;
        }
        Ok(Some(browser))
    }

    /// Shows the page of that node, and waits until the page has received the elections.
    pub(crate) async fn open(&mut self, at: SocketAddr) -> Result {
        let url = json!({ "url": format!("http://{at}/") });
        let loaded = "document.querySelectorAll('section[data-election]').length > 0";
        loop {
            let before = self.network_changes();
            self.call("Page.navigate", url.clone()).await?;
            let is_cut = |browser: &Self| browser.network_changes() > before;
            if self.until_unless(loaded, is_cut).await? {
                break;
            }
        }
        // The mark disappears when the page is loaded again.
        self.evaluate("window.stillTheSame = true").await?;
        Ok(())
    }

    /// Sends one command of the protocol, to the page if there is one.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last += 1;
        let id = self.last;
        let mut command = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        let (answer, answered) = oneshot::channel();
        lock(&self.said).waiting.insert(id, answer);
        self.commands
            .write_all(format!("{command}\0").as_bytes())
            .await?;
        let answer = tokio::time::timeout(SOON, answered).await;
        let answer = answer
            .map_err(|_| format!("{method}: no answer"))?
            .map_err(|_| format!("{method}: the browser is gone"))?;
        match answer.get("error") {
            Some(error) => Err(format!("{method}: {error}").into()),
            None => Ok(answer["result"].clone()),
        }
    }

    /// Evaluates an expression in the page.
    pub(crate) async fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", params).await?;
        match answer.get("exceptionDetails") {
            Some(thrown) => Err(format!("{expression}: {thrown}").into()),
            None => Ok(answer["result"]["value"].clone()),
        }
    }

    /// Returns the text of all elements that match a selector, in their order.
    pub(crate) async fn texts(&mut self, selector: &str) -> Result<Vec<String>> {
        let found =
            format!("[...document.querySelectorAll({selector:?})].map(one => one.textContent)");
        Ok(serde_json::from_value(self.evaluate(&found).await?)?)
    }

    /// Waits until an expression is true in the page.
    pub(crate) async fn until(&mut self, expression: &str) -> Result {
        self.until_unless(expression, |_| false).await.map(drop)
    }

    /// Waits until an expression is true in the page. Returns `false` if the other condition came true first.
    async fn until_unless(
        &mut self,
        expression: &str,
        is_off: impl Fn(&Self) -> bool,
    ) -> Result<bool> {
        let done = eventually(SOON, expression, async || {
            let value = self.evaluate(expression).await.ok();
            let is_true = value.is_some_and(|value| value == true);
            (is_true || is_off(self)).then_some(is_true)
        })
        .await;
        if done.is_err() {
            println!(
                "---- the page ----\n{}",
                self.evaluate("document.body?.innerText").await?
            );
            println!("---- its complaints ----\n{:?}", self.complaints());
        }
        Ok(done?)
    }

    /// Waits until a selector matches that many elements.
    pub(crate) async fn until_count(&mut self, selector: &str, count: usize) -> Result {
        self.until(&format!(
            "document.querySelectorAll({selector:?}).length === {count}"
        ))
        .await
    }

    /// Waits until the page names that node as the leader.
    pub(crate) async fn until_leads(&mut self, election: &str, who: &str) -> Result {
        let place = format!("section[data-election={election:?}] .leader");
        let wanted = format!("{who} leads");
        self.until(&format!(
            "document.querySelector({place:?})?.textContent === {wanted:?}"
        ))
        .await
    }

    /// Returns true if the page still is the one that was opened.
    pub(crate) async fn is_the_same(&mut self) -> Result<bool> {
        Ok(self.evaluate("window.stillTheSame === true").await? == true)
    }

    /// Returns all console messages, exceptions, breaches of the policy and other faults, except requests that were
    /// cancelled by a change of this machine's networks.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut all = self.all_complaints();
        all.retain(|complaint| !complaint.contains(NETWORK_CHANGED));
        all
    }

    /// Returns how many requests were cancelled by a change of this machine's networks.
    fn network_changes(&self) -> usize {
        let all = self.all_complaints().into_iter();
        all.filter(|complaint| complaint.contains(NETWORK_CHANGED))
            .count()
    }

    fn all_complaints(&self) -> Vec<String> {
        let events = &lock(&self.said).events;
        let bad = events.iter().filter(|event| {
            let kind = event["method"].as_str().unwrap_or_default();
            COMPLAINTS.contains(&kind)
        });
        bad.map(|event| event["params"].to_string()).collect()
    }

    /// Returns the addresses that were requested over the network.
    pub(crate) fn requested(&self) -> Vec<String> {
        let events = &lock(&self.said).events;
        let sent = events
            .iter()
            .filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str())
            .map(ToOwned::to_owned)
            .collect()
    }

    /// Resizes the window; a picture of it has `scale` pixels for each pixel of the page.
    pub(crate) async fn resize(&mut self, width: u32, height: u32, scale: f64) -> Result {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics)
            .await?;
        Ok(())
    }

    /// Emulates a user who prefers the scheme "dark" or "light".
    pub(crate) async fn scheme(&mut self, scheme: &str) -> Result {
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", media).await?;
        Ok(())
    }

    /// Presses and releases a key.
    pub(crate) async fn press(&mut self, key: &str, code: u32, text: &str) -> Result {
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// Returns a picture of the whole page as PNG.
    pub(crate) async fn picture(&mut self) -> Result<Vec<u8>> {
        let params = json!({ "format": "png", "captureBeyondViewport": true });
        let taken = self.call("Page.captureScreenshot", params).await?;
        Ok(BASE64_STANDARD.decode(taken["data"].as_str().ok_or("a picture")?)?)
    }
}

/// Reads messages, each of which ends with a zero. At the end of the pipe all senders are dropped, which ends every
/// wait for an answer.
async fn read(answers: ChildStdout, said: Arc<Mutex<Said>>) {
    let mut answers = BufReader::new(answers);
    let mut bytes = Vec::new();
    while matches!(answers.read_until(0, &mut bytes).await, Ok(length) if length > 0) {
        bytes.pop();
        let message: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        bytes.clear();
        let mut said = lock(&said);
        match message["id"]
            .as_u64()
            .and_then(|id| said.waiting.remove(&id))
        {
            Some(waiting) => drop(waiting.send(message)),
            None => said.events.push(message),
        }
    }
    lock(&said).waiting.clear();
}
