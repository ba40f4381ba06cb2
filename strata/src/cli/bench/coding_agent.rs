//! The turns of a coding agent, which the benchmark of a server and the sweep of policies have in common.

use super::random::Random;

/// Prompt tokens of a turn, mean output tokens, tool, and its shortest and longest seconds.
pub(in crate::cli) type TurnMeans = (usize, usize, &'static str, f64, f64);

/// The turns. The last one is followed by a tool only in a job that goes on.
pub(in crate::cli) const TURNS: [TurnMeans; 8] = [
    (92, 25, "cat", 0.05, 0.15),
    (469, 17, "ls", 0.05, 0.10),
    (811, 13, "ls", 0.05, 0.10),
    (1343, 22, "grep", 0.08, 0.20),
    (1655, 16, "python", 2.0, 5.0),
    (2241, 13, "ls", 0.05, 0.10),
    (2665, 80, "sed", 0.10, 0.30),
    (2915, 24, "python", 2.0, 5.0),
];

/// Outputs are drawn from this share of their mean to the other one.
const OUTPUT_SHARES: (f64, f64) = (0.7, 1.3);

/// A turn of one job.
pub(in crate::cli) struct CodingTurn {
    /// Tokens of the whole prompt, history included.
    pub prompt_tokens: usize,
    pub output_tokens: usize,
    pub tool: &'static str,
    pub tool_seconds: f64,
}

/// Draws the turns of a job.
pub(in crate::cli) fn draw(random: &mut Random) -> [CodingTurn; TURNS.len()] {
    TURNS.map(|(prompt_tokens, output, tool, from, to)| {
        let output = output as f64 * random.between(OUTPUT_SHARES.0, OUTPUT_SHARES.1);
        let tool_seconds = random.between(from, to);
        let output_tokens = (output.round() as usize).max(1);
        CodingTurn { prompt_tokens, output_tokens, tool, tool_seconds }
    })
}
