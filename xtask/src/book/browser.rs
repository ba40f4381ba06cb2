//! Headless Chromium, driven through two pipes: its DevTools protocol is JSON, each message ended by a zero byte.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use course::shell::{exists, target_dir};

/// Names a browser.
const VARIABLE: &str = "CHROME";

/// What Chromium may be called.
const NAMES: [&str; 5] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
];

/// Arguments. The pages are this book's own, so they need no sandbox, which few containers allow; and no name is looked
/// up, so whatever a page wants from the network fails. As on a phone, a scroll bar takes no room.
const ARGUMENTS: [&str; 8] = [
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
];

/// The browser reads descriptor 3 and writes to descriptor 4.
const START: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null";

/// How long a page may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The browser of this machine.
///
/// # Errors
/// There is none.
pub fn find() -> Result<String> {
    if let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        let name = name.to_string_lossy().into_owned();
        if !exists(&name) {
            bail!("${VARIABLE} is `{name}`, which cannot be started");
        }
        return Ok(name);
    }
    match NAMES.into_iter().find(|name| exists(name)) {
        Some(name) => Ok(name.into()),
        None => bail!(
            "no browser was found: install Chromium or Chrome (`apt-get install chromium`), or set ${VARIABLE} to the \
             path of one"
        ),
    }
}

/// A running browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    /// Identifies a call and its reply.
    calls: u64,
    /// The page that calls are about, once there is one.
    session: Option<String>,
    /// Where it keeps its profile, which goes when it goes.
    profile: PathBuf,
}

impl Browser {
    /// Start a browser and open an empty page.
    ///
    /// # Errors
    /// It does not start, or does not speak the protocol.
    pub fn start(name: &str) -> Result<Self> {
        let profile = target_dir()?.join("tmp").join(format!("browser-{}", std::process::id()));
        fs::create_dir_all(&profile).with_context(|| profile.display().to_string())?;
        let errors = fs::File::create(profile.join("stderr")).context("a file for its errors")?;
        let mut child = Command::new("sh")
            .args(["-c", START, name])
            .args(ARGUMENTS)
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .context("cannot start `sh`")?;
        let to = child.stdin.take().context("the browser's input")?;
        let output = child.stdout.take().context("the browser's output")?;
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { break };
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self { child, to, from, calls: 0, session: None, profile };
        browser.open().with_context(|| format!("`{name}`{}", browser.complaint()))?;
        Ok(browser)
    }

    fn open(&mut self) -> Result<()> {
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", attach)?;
        self.session = Some(session["sessionId"].as_str().context("a session")?.to_string());
        self.call("Page.enable", json!({}))?;
        Ok(())
    }

    /// The end of what the browser wrote to stderr.
    fn complaint(&self) -> String {
        let said = fs::read_to_string(self.profile.join("stderr")).unwrap_or_default();
        let last: Vec<&str> = said.lines().rev().take(4).collect();
        last.iter().rev().map(|line| format!("\n{line}")).collect()
    }

    /// Make the window of the next pages this wide.
    ///
    /// # Errors
    /// The browser has gone.
    pub fn resize(&mut self, width: u32, height: u32) -> Result<()> {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        Ok(())
    }

    /// Open a file, wait until it is loaded, and return what a script says of it.
    ///
    /// # Errors
    /// The file cannot be opened, takes too long, or the script fails.
    pub fn ask(&mut self, file: &Path, script: &str) -> Result<Value> {
        let opened = self.call("Page.navigate", json!({ "url": url(file) }))?;
        if let Some(error) = opened["errorText"].as_str() {
            bail!("the browser cannot open it: {error}");
        }
        self.receive(|message| message["method"] == "Page.loadEventFired")?;
        let script = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let mut said = self.call("Runtime.evaluate", script)?;
        if let Some(exception) = said.get("exceptionDetails") {
            bail!("the script failed: {exception}");
        }
        Ok(said["result"]["value"].take())
    }

    fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.calls += 1;
        let id = self.calls;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        self.to.write_all(&bytes).with_context(|| format!("{method}: the browser has gone"))?;
        let mut reply = self.receive(|message| message["id"] == id).context(method.to_string())?;
        if let Some(error) = reply.get("error") {
            bail!("{method}: {error}");
        }
        Ok(reply["result"].take())
    }

    /// The next message that is wanted; others are events that do not matter here.
    fn receive(&self, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.from.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(message) if wanted(&message) => return Ok(message),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("no reply for {} s", PATIENCE.as_secs()),
                Err(RecvTimeoutError::Disconnected) => bail!("the browser has gone"),
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // An error here would hide the one that matters, and a profile left in target/ harms nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}

/// The URL of a file.
fn url(file: &Path) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-".contains(&b);
    let path = file.to_string_lossy();
    let escaped =
        path.bytes().map(|b| if plain(b) { char::from(b).into() } else { format!("%{b:02X}") });
    format!("file://{}", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_file_is_escaped() {
        assert_eq!(url(Path::new("/a b/c#d/é.html")), "file:///a%20b/c%23d/%C3%A9.html");
    }

    #[test]
    fn a_program_that_is_no_browser_is_an_error() {
        let error = Browser::start("true").err().expect("`true` is no browser");
        assert!(format!("{error:#}").contains("has gone"), "{error:#}");
    }
}
