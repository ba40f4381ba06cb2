//! The requests: synthetic prompts, or those of a file.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::cli::bench::random::Random;
use crate::cli::bench::span::Span;
use crate::cli::error::CliError;

/// Short common words. Most vocabularies have each of them, with the space before it, as one token.
pub(in crate::cli::bench) const WORDS: [&str; 48] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
    "on", "not", "he", "this", "are", "or", "his", "from", "at", "which", "but", "have", "an",
    "had", "they", "you", "were", "their", "one", "all", "we", "can", "her", "has", "there",
    "been", "if", "more", "when", "will", "would", "who", "so", "no",
];

/// Endpoint of OpenAI's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli::bench) enum Endpoint {
    /// A text or token ids to continue
    Completions,
    /// Messages
    Chat,
}

impl Endpoint {
    /// Its path below the base URL.
    pub(in crate::cli::bench) fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

/// Format of synthetic prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Token ids: exactly the requested length. Completions only
    Ids,
    /// Text: about the requested length, depending on the server's tokenizer
    Text,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Prompt {
    /// Token ids.
    Ids(Vec<u32>),
    /// A text.
    Text(String),
    /// A chat so far.
    Messages(Value),
}

/// A request, independent of the endpoint.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BenchRequest {
    /// Its prompt.
    pub prompt: Prompt,
    /// Maximum number of tokens of its completion.
    pub output: usize,
    /// Arrival in seconds from the beginning, if the dataset has it.
    pub arrival: Option<f64>,
}

/// Lengths of synthetic requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Number of tokens of the shared prefix.
    pub prefix: usize,
    /// Number of tokens of a prompt after the prefix.
    pub input: usize,
    /// Number of tokens of a completion.
    pub output: usize,
    /// Both lengths are drawn from `length * (1 - ratio)` to `length * (1 + ratio)`.
    pub ratio: f64,
    /// Range of token ids.
    pub ids: Span,
}

impl Shape {
    fn around(&self, length: usize) -> Span {
        let from = ((length as f64 * (1.0 - self.ratio)).floor() as usize).max(1);
        let to = ((length as f64 * (1.0 + self.ratio)).ceil() as usize).max(from);
        Span { from, to }
    }

    /// Draws synthetic requests. The same arguments give the same requests.
    pub(super) fn draw(
        &self,
        n: usize,
        format: Format,
        endpoint: Endpoint,
        seed: u64,
    ) -> Vec<BenchRequest> {
        let mut random = Random::new(seed);
        let prefix = self.part(self.prefix, format, &mut random);
        let request = |_| {
            let length = random.within(self.around(self.input));
            let output = random.within(self.around(self.output));
            let own = self.part(length, format, &mut random);
            BenchRequest { prompt: join(&prefix, own, endpoint), output, arrival: None }
        };
        (0..n).map(request).collect()
    }

    fn part(&self, length: usize, format: Format, random: &mut Random) -> PromptPart {
        match format {
            Format::Ids => {
                let id = |_| u32::try_from(random.within(self.ids)).unwrap_or(u32::MAX);
                PromptPart::Ids((0..length).map(id).collect())
            }
            Format::Text => {
                let word = |_| {
                    let at = random.below(WORDS.len() as u64) as usize;
                    WORDS.get(at).copied().unwrap_or("the")
                };
                PromptPart::Text((0..length).map(word).collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// A part of a synthetic prompt.
enum PromptPart {
    Ids(Vec<u32>),
    Text(String),
}

/// The common prefix is a system message in a chat, and the beginning of the prompt elsewhere.
fn join(prefix: &PromptPart, own: PromptPart, endpoint: Endpoint) -> Prompt {
    match (prefix, own) {
        (PromptPart::Ids(prefix), PromptPart::Ids(own)) => {
            Prompt::Ids([prefix.as_slice(), &own].concat())
        }
        (PromptPart::Text(prefix), PromptPart::Text(own)) if prefix.is_empty() => Prompt::Text(own),
        (PromptPart::Text(prefix), PromptPart::Text(own)) if endpoint == Endpoint::Chat => {
            Prompt::Messages(
                json!([{"role": "system", "content": prefix}, {"role": "user", "content": own}]),
            )
        }
        (PromptPart::Text(prefix), PromptPart::Text(own)) => {
            Prompt::Text(format!("{prefix} {own}"))
        }
        // All parts have one format.
        (_, PromptPart::Ids(own)) => Prompt::Ids(own),
        (_, PromptPart::Text(own)) => Prompt::Text(own),
    }
}

/// One line of a file.
#[derive(Deserialize)]
struct Line {
    prompt: Option<Written>,
    tokens: Option<Vec<u32>>,
    messages: Option<Value>,
    #[serde(alias = "output_tokens", alias = "output_len", alias = "max_completion_tokens")]
    max_tokens: Option<usize>,
    arrival: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Ids(Vec<u32>),
}

/// The requests of a file, in its order.
///
/// # Errors
/// A file that cannot be read, a line that is no request.
pub(super) fn read(path: &Path, output: usize) -> Result<Vec<BenchRequest>, CliError> {
    let input = |reason| CliError::Input { what: path.display().to_string(), reason };
    let wrong = |line: usize, why: String| {
        CliError::Usage(format!("{}, line {}: {why}", path.display(), line + 1))
    };
    let mut requests = Vec::new();
    for (i, line) in BufReader::new(File::open(path).map_err(input)?).lines().enumerate() {
        let line = line.map_err(input)?;
        if line.trim().is_empty() {
            continue;
        }
        let line = serde_json::from_str::<Line>(&line).map_err(|e| wrong(i, e.to_string()))?;
        requests.push(line.request(output).map_err(|why| wrong(i, why))?);
    }
    if requests.is_empty() {
        return Err(CliError::Usage(format!("{} has no requests", path.display())));
    }
    Ok(requests)
}

/// Takes `n` requests of a file, the earliest first if it has arrival times. A file with fewer is repeated, each time
/// after the last arrival.
pub(super) fn repeat(all: &[BenchRequest], n: usize) -> Vec<BenchRequest> {
    let mut sorted = all.to_vec();
    if all.iter().all(|request| request.arrival.is_some()) {
        let moment = |request: &BenchRequest| request.arrival.unwrap_or(0.0);
        sorted.sort_by(|a, b| moment(a).total_cmp(&moment(b)));
    }
    let last = sorted.last().and_then(|request| request.arrival).unwrap_or(0.0);
    let request = |(i, request): (usize, &BenchRequest)| {
        let round = i / sorted.len().max(1);
        BenchRequest {
            arrival: request.arrival.map(|at| at + last * round as f64),
            ..request.clone()
        }
    };
    sorted.iter().cycle().take(n).enumerate().map(request).collect()
}

impl Line {
    fn request(self, output: usize) -> Result<BenchRequest, String> {
        let prompt = match (self.prompt, self.tokens, self.messages) {
            (Some(Written::Text(text)), None, None) => Prompt::Text(text),
            (Some(Written::Ids(ids)), None, None) | (None, Some(ids), None) => Prompt::Ids(ids),
            (None, None, Some(messages)) => Prompt::Messages(messages),
            _ => {
                return Err(
                    "exactly one of `prompt`, `tokens` and `messages` is required".to_owned()
                );
            }
        };
        if self.arrival.is_some_and(|at| !at.is_finite() || at < 0.0) {
            return Err("`arrival` must be a number of seconds, at least 0".to_owned());
        }
        let output = self.max_tokens.unwrap_or(output);
        Ok(BenchRequest { prompt, output, arrival: self.arrival })
    }
}

/// The fields that all requests share.
pub(super) struct Form {
    /// Endpoint.
    pub endpoint: Endpoint,
    /// Model name.
    pub model: String,
    /// Sampling temperature.
    pub temperature: f64,
    /// Whether to continue past the model's end tokens.
    pub ignore_eos: bool,
    /// Additional fields, which override the others.
    pub extra: Map<String, Value>,
}

impl Form {
    /// The body of a request.
    ///
    /// # Errors
    /// A prompt that the endpoint has no place for.
    pub(super) fn body(&self, request: &BenchRequest) -> Result<Bytes, CliError> {
        let mut body = Map::new();
        body.insert("model".to_owned(), self.model.as_str().into());
        let (field, value) = match (self.endpoint, &request.prompt) {
            (Endpoint::Completions, Prompt::Text(text)) => ("prompt", text.as_str().into()),
            (Endpoint::Completions, Prompt::Ids(ids)) => ("prompt", ids.as_slice().into()),
            (Endpoint::Chat, Prompt::Text(text)) => {
                ("messages", json!([{"role": "user", "content": text}]))
            }
            (Endpoint::Chat, Prompt::Messages(messages)) => ("messages", messages.clone()),
            (Endpoint::Chat, Prompt::Ids(_)) => {
                return Err(usage("a chat does not accept token ids: use --endpoint completions"));
            }
            (Endpoint::Completions, Prompt::Messages(_)) => {
                return Err(usage("messages require --endpoint chat"));
            }
        };
        body.insert(field.to_owned(), value);
        body.insert("max_tokens".to_owned(), request.output.into());
        body.insert("temperature".to_owned(), self.temperature.into());
        body.insert("stream".to_owned(), true.into());
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        if self.ignore_eos {
            body.insert("ignore_eos".to_owned(), true.into());
        }
        for (name, value) in &self.extra {
            match value {
                // A field that a server does not know can be left out.
                Value::Null => body.remove(name),
                value => body.insert(name.clone(), value.clone()),
            };
        }
        Ok(Value::Object(body).to_string().into())
    }
}

fn usage(why: &str) -> CliError {
    CliError::Usage(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape =
        Shape { prefix: 5, input: 10, output: 4, ratio: 0.5, ids: Span { from: 100, to: 120 } };

    fn form(endpoint: Endpoint) -> Form {
        let model = "tiny".to_owned();
        Form { endpoint, model, temperature: 0.0, ignore_eos: true, extra: Map::new() }
    }

    fn ids(request: &BenchRequest) -> &[u32] {
        match &request.prompt {
            Prompt::Ids(ids) => ids,
            other => panic!("{other:?} are no ids"),
        }
    }

    #[test]
    fn made_up_requests_follow_from_their_seed_and_share_their_beginning() {
        let draw = |seed| SHAPE.draw(300, Format::Ids, Endpoint::Completions, seed);
        let all = draw(3);
        assert_eq!(all, draw(3));
        assert_ne!(all, draw(4));
        assert!(all.iter().all(|request| ids(request)[..5] == ids(&all[0])[..5]));
        assert!(all.iter().flat_map(ids).all(|id| (100..=120).contains(id)));
        let lengths = || all.iter().map(|request| ids(request).len() - 5);
        assert_eq!((lengths().min(), lengths().max()), (Some(5), Some(15)));
        let outputs = || all.iter().map(|request| request.output);
        assert_eq!((outputs().min(), outputs().max()), (Some(2), Some(6)));
    }

    #[test]
    fn a_text_has_one_word_for_each_requested_token() {
        let shape = Shape { ratio: 0.0, ..SHAPE };
        let text = shape.draw(1, Format::Text, Endpoint::Completions, 0);
        let Prompt::Text(text) = &text[0].prompt else { panic!("no text") };
        assert_eq!(text.split(' ').count(), 15);
        let chat = shape.draw(1, Format::Text, Endpoint::Chat, 0);
        let Prompt::Messages(messages) = &chat[0].prompt else { panic!("no messages") };
        let words = |i: usize| messages[i]["content"].as_str().unwrap().split(' ').count();
        assert_eq!((words(0), words(1)), (5, 10));
        let alone = Shape { prefix: 0, ..shape }.draw(1, Format::Text, Endpoint::Chat, 0);
        assert!(matches!(alone[0].prompt, Prompt::Text(_)));
    }

    #[test]
    fn a_body_says_what_was_asked_for_and_extra_fields_win() {
        let request = BenchRequest { prompt: Prompt::Ids(vec![1, 2]), output: 7, arrival: None };
        let mut form = form(Endpoint::Completions);
        let parse = |bytes: Bytes| serde_json::from_slice::<Value>(&bytes).unwrap();
        let expected = json!({
            "model": "tiny", "prompt": [1, 2], "max_tokens": 7, "temperature": 0.0, "stream": true,
            "stream_options": {"include_usage": true}, "ignore_eos": true,
        });
        assert_eq!(parse(form.body(&request).unwrap()), expected);
        form.extra.insert("max_tokens".to_owned(), Value::Null);
        form.extra.insert("max_completion_tokens".to_owned(), 7.into());
        let body = parse(form.body(&request).unwrap());
        assert_eq!((&body["max_completion_tokens"], body.get("max_tokens")), (&json!(7), None));
    }

    #[test]
    fn a_prompt_that_the_endpoint_cannot_take_is_refused() {
        let ids = BenchRequest { prompt: Prompt::Ids(vec![1]), output: 1, arrival: None };
        assert!(form(Endpoint::Chat).body(&ids).is_err());
        let messages = BenchRequest { prompt: Prompt::Messages(json!([])), ..ids };
        assert!(form(Endpoint::Completions).body(&messages).is_err());
        assert!(form(Endpoint::Chat).body(&messages).is_ok());
    }

    #[test]
    fn a_file_that_is_too_short_is_begun_again_behind_its_end() {
        let request =
            |id, arrival| BenchRequest { prompt: Prompt::Ids(vec![id]), output: 1, arrival };
        let all = [request(2, Some(3.0)), request(1, Some(0.5))];
        let five = repeat(&all, 5);
        let moments: Vec<f64> = five.iter().filter_map(|request| request.arrival).collect();
        assert_eq!(moments, [0.5, 3.0, 3.5, 6.0, 6.5]);
        assert_eq!((ids(&five[0]), ids(&five[1])), (&[1][..], &[2][..]));
        // Without moments the order of the file counts.
        let plain = repeat(&[request(2, None), request(1, Some(0.5))], 3);
        assert_eq!(plain.iter().map(|request| ids(request)[0]).collect::<Vec<_>>(), [2, 1, 2]);
    }

    #[test]
    fn a_file_holds_a_request_a_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = concat!(
            "{\"prompt\": \"Once\", \"output_tokens\": 3}\n\n",
            "{\"tokens\": [1, 2], \"arrival\": 0.5, \"output_tokens\": 9}\n",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n",
        );
        std::fs::write(file.path(), text).unwrap();
        let requests = read(file.path(), 16).unwrap();
        assert_eq!(requests[0].prompt, Prompt::Text("Once".to_owned()));
        assert_eq!((requests[1].output, requests[1].arrival), (9, Some(0.5)));
        assert_eq!(requests[2].output, 16);
        for (line, word) in [
            ("{\"prompt\": 5}", "line 1"),
            ("{}", "one of `prompt`"),
            ("{\"tokens\": [1], \"arrival\": -1}", "`arrival`"),
            ("", "no requests"),
        ] {
            std::fs::write(file.path(), line).unwrap();
            let why = read(file.path(), 16).unwrap_err().to_string();
            assert!(why.contains(word), "{line}: {why}");
        }
    }
}
