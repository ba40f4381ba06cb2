//! What is asked: made-up prompts, or those of a file.

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
const WORDS: [&str; 48] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
    "on", "not", "he", "this", "are", "or", "his", "from", "at", "which", "but", "have", "an",
    "had", "they", "you", "were", "their", "one", "all", "we", "can", "her", "has", "there",
    "been", "if", "more", "when", "will", "would", "who", "so", "no",
];

/// Which of OpenAI's endpoints is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Endpoint {
    /// A text or token ids to continue
    Completions,
    /// Messages
    Chat,
}

impl Endpoint {
    /// Its path below the base URL.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

/// How made-up prompts are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// As token ids: exactly as long as asked for. Completions only
    Ids,
    /// As words: about as long, as the server's tokenizer will have it
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

/// A request, whoever it will be sent to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ask {
    /// Its prompt.
    pub prompt: Prompt,
    /// The most tokens of its answer.
    pub output: usize,
    /// When it comes, in seconds from the beginning, if the dataset says so.
    pub arrival: Option<f64>,
}

/// How long made-up requests are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Tokens that all prompts begin with, together.
    pub prefix: usize,
    /// Tokens of a prompt behind them.
    pub input: usize,
    /// Tokens of an answer.
    pub output: usize,
    /// Both lengths are drawn from `length * (1 - ratio)` to `length * (1 + ratio)`.
    pub ratio: f64,
    /// What token ids are drawn from.
    pub ids: Span,
}

impl Shape {
    fn around(&self, length: usize) -> Span {
        let from = ((length as f64 * (1.0 - self.ratio)).floor() as usize).max(1);
        let to = ((length as f64 * (1.0 + self.ratio)).ceil() as usize).max(from);
        Span { from, to }
    }

    /// Made-up requests. The same arguments make the same ones.
    pub(super) fn draw(&self, n: usize, format: Format, endpoint: Endpoint, seed: u64) -> Vec<Ask> {
        let mut random = Random::new(seed);
        let prefix = self.piece(self.prefix, format, &mut random);
        let ask = |_| {
            let length = random.within(self.around(self.input));
            let output = random.within(self.around(self.output));
            let own = self.piece(length, format, &mut random);
            Ask { prompt: join(&prefix, own, endpoint), output, arrival: None }
        };
        (0..n).map(ask).collect()
    }

    fn piece(&self, length: usize, format: Format, random: &mut Random) -> Piece {
        match format {
            Format::Ids => {
                let id = |_| u32::try_from(random.within(self.ids)).unwrap_or(u32::MAX);
                Piece::Ids((0..length).map(id).collect())
            }
            Format::Text => {
                let word = |_| {
                    let at = random.below(WORDS.len() as u64) as usize;
                    WORDS.get(at).copied().unwrap_or("the")
                };
                Piece::Text((0..length).map(word).collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// A part of a made-up prompt.
enum Piece {
    Ids(Vec<u32>),
    Text(String),
}

/// What all have in common is a system message in a chat, and the beginning elsewhere.
fn join(prefix: &Piece, own: Piece, endpoint: Endpoint) -> Prompt {
    match (prefix, own) {
        (Piece::Ids(prefix), Piece::Ids(own)) => Prompt::Ids([prefix.as_slice(), &own].concat()),
        (Piece::Text(prefix), Piece::Text(own)) if prefix.is_empty() => Prompt::Text(own),
        (Piece::Text(prefix), Piece::Text(own)) if endpoint == Endpoint::Chat => Prompt::Messages(
            json!([{"role": "system", "content": prefix}, {"role": "user", "content": own}]),
        ),
        (Piece::Text(prefix), Piece::Text(own)) => Prompt::Text(format!("{prefix} {own}")),
        // One format makes all pieces.
        (_, Piece::Ids(own)) => Prompt::Ids(own),
        (_, Piece::Text(own)) => Prompt::Text(own),
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
pub(super) fn read(path: &Path, output: usize) -> Result<Vec<Ask>, CliError> {
    let input = |reason| CliError::Input { what: path.display().to_string(), reason };
    let wrong = |line: usize, why: String| {
        CliError::Usage(format!("{}, line {}: {why}", path.display(), line + 1))
    };
    let mut asks = Vec::new();
    for (i, line) in BufReader::new(File::open(path).map_err(input)?).lines().enumerate() {
        let line = line.map_err(input)?;
        if line.trim().is_empty() {
            continue;
        }
        let line = serde_json::from_str::<Line>(&line).map_err(|e| wrong(i, e.to_string()))?;
        asks.push(line.ask(output).map_err(|why| wrong(i, why))?);
    }
    if asks.is_empty() {
        return Err(CliError::Usage(format!("{} has no requests", path.display())));
    }
    Ok(asks)
}

/// So many requests of a file, the earliest first where it says when they come. Where it has fewer it is begun again, behind
/// its last moment.
pub(super) fn repeat(all: &[Ask], n: usize) -> Vec<Ask> {
    let mut sorted = all.to_vec();
    if all.iter().all(|ask| ask.arrival.is_some()) {
        let moment = |ask: &Ask| ask.arrival.unwrap_or(0.0);
        sorted.sort_by(|a, b| moment(a).total_cmp(&moment(b)));
    }
    let last = sorted.last().and_then(|ask| ask.arrival).unwrap_or(0.0);
    let ask = |(i, ask): (usize, &Ask)| {
        let round = i / sorted.len().max(1);
        Ask { arrival: ask.arrival.map(|at| at + last * round as f64), ..ask.clone() }
    };
    sorted.iter().cycle().take(n).enumerate().map(ask).collect()
}

impl Line {
    fn ask(self, output: usize) -> Result<Ask, String> {
        let prompt = match (self.prompt, self.tokens, self.messages) {
            (Some(Written::Text(text)), None, None) => Prompt::Text(text),
            (Some(Written::Ids(ids)), None, None) | (None, Some(ids), None) => Prompt::Ids(ids),
            (None, None, Some(messages)) => Prompt::Messages(messages),
            _ => return Err("give one of `prompt`, `tokens` and `messages`".to_owned()),
        };
        if self.arrival.is_some_and(|at| !at.is_finite() || at < 0.0) {
            return Err("`arrival` must be a number of seconds, not below 0".to_owned());
        }
        let output = self.max_tokens.unwrap_or(output);
        Ok(Ask { prompt, output, arrival: self.arrival })
    }
}

/// What all requests say besides their prompt.
pub(super) struct Form {
    /// Where they go.
    pub endpoint: Endpoint,
    /// The model they name.
    pub model: String,
    /// Divides the logits.
    pub temperature: f64,
    /// Go on past the model's end tokens: answers are as long as they may be.
    pub ignore_eos: bool,
    /// Fields that were asked for by name. They win.
    pub extra: Map<String, Value>,
}

impl Form {
    /// The body of a request.
    ///
    /// # Errors
    /// A prompt that the endpoint has no place for.
    pub(super) fn body(&self, ask: &Ask) -> Result<Bytes, CliError> {
        let mut body = Map::new();
        body.insert("model".to_owned(), self.model.as_str().into());
        let (field, value) = match (self.endpoint, &ask.prompt) {
            (Endpoint::Completions, Prompt::Text(text)) => ("prompt", text.as_str().into()),
            (Endpoint::Completions, Prompt::Ids(ids)) => ("prompt", ids.as_slice().into()),
            (Endpoint::Chat, Prompt::Text(text)) => {
                ("messages", json!([{"role": "user", "content": text}]))
            }
            (Endpoint::Chat, Prompt::Messages(messages)) => ("messages", messages.clone()),
            (Endpoint::Chat, Prompt::Ids(_)) => {
                return Err(usage("a chat takes no token ids: ask --endpoint completions"));
            }
            (Endpoint::Completions, Prompt::Messages(_)) => {
                return Err(usage("messages need a chat: ask --endpoint chat"));
            }
        };
        body.insert(field.to_owned(), value);
        body.insert("max_tokens".to_owned(), ask.output.into());
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

    fn ids(ask: &Ask) -> &[u32] {
        match &ask.prompt {
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
        assert!(all.iter().all(|ask| ids(ask)[..5] == ids(&all[0])[..5]));
        assert!(all.iter().flat_map(ids).all(|id| (100..=120).contains(id)));
        let lengths = || all.iter().map(|ask| ids(ask).len() - 5);
        assert_eq!((lengths().min(), lengths().max()), (Some(5), Some(15)));
        let outputs = || all.iter().map(|ask| ask.output);
        assert_eq!((outputs().min(), outputs().max()), (Some(2), Some(6)));
    }

    #[test]
    fn a_text_has_as_many_words_as_tokens_were_asked_for() {
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
        let ask = Ask { prompt: Prompt::Ids(vec![1, 2]), output: 7, arrival: None };
        let mut form = form(Endpoint::Completions);
        let parse = |bytes: Bytes| serde_json::from_slice::<Value>(&bytes).unwrap();
        let expected = json!({
            "model": "tiny", "prompt": [1, 2], "max_tokens": 7, "temperature": 0.0, "stream": true,
            "stream_options": {"include_usage": true}, "ignore_eos": true,
        });
        assert_eq!(parse(form.body(&ask).unwrap()), expected);
        form.extra.insert("max_tokens".to_owned(), Value::Null);
        form.extra.insert("max_completion_tokens".to_owned(), 7.into());
        let body = parse(form.body(&ask).unwrap());
        assert_eq!((&body["max_completion_tokens"], body.get("max_tokens")), (&json!(7), None));
    }

    #[test]
    fn a_prompt_that_the_endpoint_cannot_take_is_refused() {
        let ids = Ask { prompt: Prompt::Ids(vec![1]), output: 1, arrival: None };
        assert!(form(Endpoint::Chat).body(&ids).is_err());
        let messages = Ask { prompt: Prompt::Messages(json!([])), ..ids };
        assert!(form(Endpoint::Completions).body(&messages).is_err());
        assert!(form(Endpoint::Chat).body(&messages).is_ok());
    }

    #[test]
    fn a_file_that_is_too_short_is_begun_again_behind_its_end() {
        let ask = |id, arrival| Ask { prompt: Prompt::Ids(vec![id]), output: 1, arrival };
        let all = [ask(2, Some(3.0)), ask(1, Some(0.5))];
        let five = repeat(&all, 5);
        let moments: Vec<f64> = five.iter().filter_map(|ask| ask.arrival).collect();
        assert_eq!(moments, [0.5, 3.0, 3.5, 6.0, 6.5]);
        assert_eq!((ids(&five[0]), ids(&five[1])), (&[1][..], &[2][..]));
        // Without moments the order of the file counts.
        let plain = repeat(&[ask(2, None), ask(1, Some(0.5))], 3);
        assert_eq!(plain.iter().map(|ask| ids(ask)[0]).collect::<Vec<_>>(), [2, 1, 2]);
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
        let asks = read(file.path(), 16).unwrap();
        assert_eq!(asks[0].prompt, Prompt::Text("Once".to_owned()));
        assert_eq!((asks[1].output, asks[1].arrival), (9, Some(0.5)));
        assert_eq!(asks[2].output, 16);
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
