//! What the router looks at: the parts of a request, and how many of their bytes.

use serde::{Deserialize, Serialize};

/// Bytes of a request that the router looks at, unless the configuration says otherwise.
pub const DEFAULT_MAX_BYTES: usize = 64 * 1024;

/// Kind of a part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// System or developer message. It is the same for many requests of a client, so it is no evidence.
    System,
    /// Message of the user.
    User,
    /// Earlier response of a model.
    Assistant,
    /// Output of a tool: a compiler, a debugger, a test run.
    Tool,
    /// Text of a repository file that the client attached.
    Snippet,
}

/// One part of a request, in the order of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Kind of the part.
    pub kind: PartKind,
    /// Text of the part.
    pub text: &'a str,
    /// Path of a [`PartKind::Snippet`], name of a tool.
    pub name: Option<&'a str>,
}

impl<'a> Part<'a> {
    /// A message of the user.
    pub fn user(text: &'a str) -> Self {
        Self { kind: PartKind::User, text, name: None }
    }
}

/// What the router decides on.
///
/// # Example
///
/// ```
/// use l6_ensemble::router::{Part, PartKind, RouteInput};
///
/// let parts = [
///     Part { kind: PartKind::Snippet, text: "add_library(net net.cpp)", name: Some("CMakeLists.txt") },
///     Part::user("Export this target."),
/// ];
/// let input = RouteInput { intent: None, parts: &parts };
/// assert_eq!(input.views(64 * 1024).len(), 2);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RouteInput<'a> {
    /// Intent that the client declared.
    pub intent: Option<&'a str>,
    /// Parts of the request, oldest first.
    pub parts: &'a [Part<'a>],
}

/// A part as the router sees it: at most two pieces of its text, and how much it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View<'a> {
    /// The part.
    pub part: Part<'a>,
    /// Head of the text; all of it if it is short enough.
    pub head: &'a str,
    /// Tail of the text, empty if `head` is all of it.
    pub tail: &'a str,
    /// How much the part counts for the classifier, in (0, 1].
    pub weight: f32,
    /// Whether the part belongs to the current turn: it is the latest user message, or a tool output or snippet.
    pub current: bool,
}

impl<'a> RouteInput<'a> {
    /// Returns the parts that are evidence, the most important first, with at most `max_bytes` bytes in all.
    ///
    /// | part | weight |
    /// |---|---|
    /// | latest user message | 1 |
    /// | snippets and tool outputs | 0.7 |
    /// | earlier user messages | 0.5 |
    /// | assistant messages | 0.3 |
    /// | system messages | none: they are not evidence |
    ///
    /// The latest user message may use all bytes but a quarter, which remains for the others; those follow from the
    /// last part to the first, kind by kind in the order of the table. Of a text that is longer than what is left, the
    /// first half of that many bytes and the last half are seen: instructions stand at either end, and so do the first
    /// error of a log and its summary. At most 256 parts are seen.
    pub fn views(&self, max_bytes: usize) -> Vec<View<'a>> {
        let latest = self.parts.iter().rposition(|part| part.kind == PartKind::User);
        let mut order: Vec<(u8, usize)> = Vec::new();
        for (i, part) in self.parts.iter().enumerate().rev() {
            let rank = match part.kind {
                PartKind::System => continue,
                PartKind::User if Some(i) == latest => 0,
                PartKind::Snippet | PartKind::Tool => 1,
                PartKind::User => 2,
                PartKind::Assistant => 3,
            };
            if !part.text.is_empty() {
                order.push((rank, i));
            }
        }
        // Stable: within a rank the last part stays first.
        order.sort_by_key(|(rank, _)| *rank);
        order.truncate(MAX_PARTS);
        let alone = order.len() == 1;
        let mut left = max_bytes;
        let mut views = Vec::with_capacity(order.len());
        for (rank, i) in order {
            if left == 0 {
                break;
            }
            let part = self.parts[i];
            let cap = if rank == 0 && !alone { max_bytes - max_bytes / 4 } else { left };
            let (head, tail) = head_and_tail(part.text, cap.min(left));
            left -= head.len() + tail.len();
            let weight = [1.0, 0.7, 0.5, 0.3][usize::from(rank)];
            views.push(View { part, head, tail, weight, current: rank <= 1 });
        }
        views
    }
}

/// Parts that are looked at, so that a request of a million empty-looking messages costs no more than others.
const MAX_PARTS: usize = 256;

/// The first and the last `max / 2` bytes of a text, cut at characters; or all of it.
fn head_and_tail(text: &str, max: usize) -> (&str, &str) {
    if text.len() <= max {
        return (text, "");
    }
    let mut end = max / 2;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut start = text.len() - max / 2;
    while !text.is_char_boundary(start) {
        start += 1;
    }
    (&text[..end], &text[start..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(kind: PartKind, text: &str) -> Part<'_> {
        Part { kind, text, name: None }
    }

    #[test]
    fn the_latest_user_message_comes_first_and_system_messages_never() {
        let parts = [
            part(PartKind::System, "s"),
            part(PartKind::User, "old"),
            part(PartKind::Assistant, "a"),
            part(PartKind::Tool, "t"),
            part(PartKind::User, "new"),
            part(PartKind::Snippet, "f"),
        ];
        let views = RouteInput { intent: None, parts: &parts }.views(100);
        let texts: Vec<&str> = views.iter().map(|v| v.head).collect();
        assert_eq!(texts, ["new", "f", "t", "old", "a"]);
        assert!(views.is_sorted_by(|a, b| a.weight >= b.weight));
        assert_eq!(
            views.iter().map(|v| v.current).collect::<Vec<_>>(),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn a_long_user_message_leaves_room_for_the_snippets() {
        let (long, file) = ("u".repeat(1000), "f".repeat(1000));
        let parts = [part(PartKind::Snippet, &file), part(PartKind::User, &long)];
        let views = RouteInput { intent: None, parts: &parts }.views(400);
        assert_eq!(views[0].head.len() + views[0].tail.len(), 300);
        assert_eq!(views[1].head.len() + views[1].tail.len(), 100);
    }

    #[test]
    fn the_end_of_a_long_text_is_seen() {
        let text = format!("first{}last", "x".repeat(1000));
        let parts = [Part::user(&text)];
        let views = RouteInput { intent: None, parts: &parts }.views(64);
        assert!(views[0].head.starts_with("first") && views[0].tail.ends_with("last"));
    }

    proptest! {
        #[test]
        fn no_more_bytes_are_seen_than_allowed(
            texts in prop::collection::vec((0..5usize, "[a-zäöü€😀]{0,40}"), 0..12),
            max in 0..200usize,
        ) {
            use PartKind::*;
            let kinds = [System, User, Assistant, Tool, Snippet];
            let parts: Vec<_> = texts.iter().map(|(k, t)| part(kinds[*k], t)).collect();
            let input = RouteInput { intent: None, parts: &parts };
            let views = input.views(max);
            let seen: usize = views.iter().map(|v| v.head.len() + v.tail.len()).sum();
            prop_assert!(seen <= max);
            for view in &views {
                prop_assert!(view.part.text.starts_with(view.head));
                prop_assert!(view.part.text.ends_with(view.tail));
                prop_assert!(view.part.kind != System);
            }
            let all: usize =
                parts.iter().filter(|p| p.kind != System).map(|p| p.text.len()).sum();
            if views.len() == 1 && all <= max {
                prop_assert_eq!(seen, all);
            }
        }
    }
}
