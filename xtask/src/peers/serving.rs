//! The servers: `strata serve` and `llama-server`, under the load of the same client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Settings;
use super::obtain::Peer;
use super::samples::{Commands, Figure, Latency, Work};
use course::shell::{program, quiet_output, spelled};

/// Requests that are in flight all the time.
pub const USERS: usize = 32;
/// Tokens of a prompt, and of a completion.
pub const LENGTHS: (usize, usize) = (128, 64);
/// Requests in a measurement, for each user.
const EACH: usize = 4;
/// Maximum time from the start of a server until it answers.
const STARTING: Duration = Duration::from_secs(120);

/// A running server; it ends when this is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
    spelled: String,
}

impl Server {
    /// Starts a server, with the given arguments for its address, and waits until it is healthy.
    fn start(mut command: Command, commands: &mut Commands) -> Result<Self> {
        // The port is free now, and is not given to others while many are free.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        commands.note(&command);
        command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let spelled = spelled(&command);
        let child = command.spawn().with_context(|| format!("cannot start `{spelled}`"))?;
        let mut server = Self { child, address, spelled };
        let begun = Instant::now();
        while !server.healthy() {
            if let Some(status) = server.child.try_wait()? {
                bail!("`{}` ended ({status}) before it answered", server.spelled);
            }
            if begun.elapsed() > STARTING {
                bail!("`{}` did not answer within {} s", server.spelled, STARTING.as_secs());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// Whether `GET /health` has status 200.
    fn healthy(&self) -> bool {
        let ask = || -> std::io::Result<Vec<u8>> {
            let wait = Duration::from_secs(1);
            let mut stream = TcpStream::connect_timeout(&self.address, wait)?;
            stream.set_read_timeout(Some(wait))?;
            stream.write_all(
                b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            )?;
            let mut head = vec![0; 12];
            stream.read_exact(&mut head)?;
            Ok(head)
        };
        ask().is_ok_and(|head| head.ends_with(b" 200"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to stop.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures `strata serve`.
pub fn ours(
    strata: &Path,
    model: &Path,
    settings: Settings,
    commands: &mut Commands,
) -> Result<Figure> {
    let mut serve = program(strata);
    serve.arg("serve").arg(model).args(["--device", "cpu", "--precision", "bf16"]);
    serve.args(["--threads", &settings.threads.to_string(), "--max-num-seqs", &USERS.to_string()]);
    measured(strata, Server::start(serve, commands)?, commands)
}

/// Measures `llama-server`, with a slot for each user.
pub fn theirs(
    strata: &Path,
    peer: &Peer,
    model: &Path,
    settings: Settings,
    commands: &mut Commands,
) -> Result<Figure> {
    let threads = settings.threads.to_string();
    // Room for the tokens of a request and of its special ones.
    let room = USERS * (LENGTHS.0 + LENGTHS.1).next_power_of_two();
    let mut serve = program(peer.tool("llama-server"));
    serve.arg("-m").arg(model).args(["-t", &threads, "-tb", &threads]);
    serve.args(["--parallel", &USERS.to_string(), "-c", &room.to_string()]);
    measured(strata, Server::start(serve, commands)?, commands)
}

/// Runs the client, and ends the server.
fn measured(strata: &Path, server: Server, commands: &mut Commands) -> Result<Figure> {
    let mut client = program(strata);
    client.args(["bench", "serve", "--concurrency", &USERS.to_string()]);
    client.args(["--num-prompts", &(USERS * EACH).to_string()]);
    client.args(["--input-len", &LENGTHS.0.to_string(), "--output-len", &LENGTHS.1.to_string()]);
    client.args(["--json", "-"]);
    commands.note(&client);
    client.args(["--url", &format!("http://{}", server.address)]);
    let text = quiet_output(&mut client)?;
    figure(&text).with_context(|| format!("what `{}` printed", spelled(&client)))
}

fn figure(text: &str) -> Result<Figure> {
    let report: Value = serde_json::from_str(text)?;
    let number = |key: &str| report[key].as_f64().with_context(|| format!("no `{key}`"));
    if number("failed")? > 0.0 {
        bail!("{} requests failed", report["failed"]);
    }
    let latency = Latency { ttft_ms: number("median_ttft_ms")?, itl_ms: number("p99_itl_ms")? };
    let rate = number("output_throughput")?;
    Ok(Figure { work: Work::Serving, rate, reached: None, latency: Some(latency) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_server_is_that_of_its_output_tokens() {
        let text = r#"{"failed": 0, "output_throughput": 404.5, "median_ttft_ms": 517.0, "p99_itl_ms": 194.0}"#;
        let figure = figure(text).unwrap();
        assert_eq!((figure.work, figure.rate), (Work::Serving, 404.5));
        let latency = figure.latency.unwrap();
        assert_eq!((latency.ttft_ms, latency.itl_ms), (517.0, 194.0));
        assert!(super::figure(&text.replace("\"failed\": 0", "\"failed\": 2")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_server_that_ends_before_it_answers_is_an_error() {
        let error = Server::start(program("false"), &mut Commands::default()).err().unwrap();
        assert!(error.to_string().contains("before it answered"), "{error}");
    }
}
