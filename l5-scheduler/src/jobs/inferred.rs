//! Jobs of requests whose clients name none: a prompt that begins with all tokens of an earlier request is the next turn
//! of the same conversation.

use std::collections::{BTreeMap, HashMap};

use l3_paged_kv::BlockHash;

use crate::Job;

/// Maximum number of conversations that are remembered.
const MAX_CONVERSATIONS: usize = 4096;

/// The last full block of each conversation. The hash of a block is that of all tokens up to its end, of the adapter and
/// of the tenant's salt, so no request continues another tenant's conversation.
#[derive(Debug, Default)]
pub(crate) struct InferredJobs {
    by_end: HashMap<BlockHash, Conversation>,
    /// Ends by the number of their last change.
    by_change: BTreeMap<u64, BlockHash>,
    changes: u64,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Conversation {
    job: u64,
    change: u64,
}

impl InferredJobs {
    /// Job of a request with these hashes: that of the longest conversation that it continues, or else a new one.
    pub(crate) fn infer(&mut self, hashes: &[BlockHash]) -> Job {
        let known = hashes.iter().rev().find_map(|hash| self.by_end.get(hash));
        let job = known.map_or(self.next, |conversation| conversation.job);
        self.next += u64::from(known.is_none());
        Job { id: format!("{PREFIX}{job}"), last_step: false }
    }

    /// A request of a job has finished, and the first of its tokens that are in blocks have these hashes. The prompt's
    /// blocks are the first `prompt` of them.
    pub(crate) fn finished(&mut self, job: &Job, hashes: &[BlockHash], prompt: usize) {
        let number = job.id.strip_prefix(PREFIX).and_then(|number| number.parse().ok());
        let (Some(job), Some(end)) = (number, hashes.last()) else { return };
        // Its turns before this one end within the prompt. A turn that was sent twice leaves the other's end alone.
        for hash in hashes.iter().take(prompt).rev() {
            if hash != end && self.by_end.get(hash).is_some_and(|earlier| earlier.job == job) {
                self.forget(hash);
                break;
            }
        }
        self.forget(end);
        self.changes += 1;
        self.by_end.insert(*end, Conversation { job, change: self.changes });
        self.by_change.insert(self.changes, *end);
        if self.by_end.len() > MAX_CONVERSATIONS
            && let Some((_, oldest)) = self.by_change.pop_first()
        {
            self.by_end.remove(&oldest);
        }
    }

    fn forget(&mut self, end: &BlockHash) {
        if let Some(conversation) = self.by_end.remove(end) {
            self.by_change.remove(&conversation.change);
        }
    }
}

/// Begin of the id of an inferred job.
const PREFIX: &str = "inferred:";

#[cfg(test)]
mod tests {
    use l3_paged_kv::{BlockHasher, ExtraKeys, TokenChain};

    use super::*;

    fn hashes(tokens: impl IntoIterator<Item = u32>, salt: Option<&str>) -> Vec<BlockHash> {
        let keys = ExtraKeys { cache_salt: salt.map(str::to_owned), ..ExtraKeys::default() };
        let mut chain = TokenChain::new(&BlockHasher::new(2), keys);
        tokens.into_iter().for_each(|token| chain.push(token));
        chain.hashes().to_vec()
    }

    #[test]
    fn a_prompt_that_continues_a_conversation_is_its_next_turn() {
        let mut jobs = InferredJobs::default();
        let first = jobs.infer(&hashes(0..4, None));
        jobs.finished(&first, &hashes(0..9, None), 2);
        let other = jobs.infer(&hashes(0..6, None));
        assert_ne!(other.id, first.id, "it shares a prefix, and not the output");
        assert_eq!(jobs.infer(&hashes(0..20, None)).id, first.id);
        assert_ne!(jobs.infer(&hashes(0..20, Some("b"))).id, first.id, "another tenant");
        assert_ne!(jobs.infer(&[]).id, first.id);
        jobs.finished(&first, &hashes(0..25, None), 10);
        assert_eq!((jobs.by_end.len(), jobs.by_change.len()), (1, 1), "the end has moved");
        assert_ne!(jobs.infer(&hashes(0..20, None)).id, first.id);
        assert_eq!(jobs.infer(&hashes(0..40, None)).id, first.id);
    }

    #[test]
    fn a_turn_that_is_sent_twice_has_two_ends() {
        let mut jobs = InferredJobs::default();
        let job = jobs.infer(&hashes(0..4, None));
        jobs.finished(&job, &hashes(0..4, None), 2);
        assert_eq!(jobs.infer(&hashes(0..8, None)).id, job.id);
        assert_eq!(jobs.infer(&hashes(0..8, None)).id, job.id);
        for last in [70, 80] {
            jobs.finished(&job, &hashes((0..8).chain([last, last]), None), 4);
        }
        for last in [70, 80] {
            let next = hashes((0..8).chain([last, last, 1, 1]), None);
            assert_eq!(jobs.infer(&next).id, job.id);
        }
    }

    #[test]
    fn conversations_that_never_return_are_dropped() {
        let mut jobs = InferredJobs::default();
        for n in 0..2 * MAX_CONVERSATIONS as u32 {
            let tokens = hashes([n, n], None);
            let job = jobs.infer(&tokens);
            jobs.finished(&job, &tokens, 1);
        }
        assert_eq!(jobs.by_end.len(), MAX_CONVERSATIONS);
        assert_eq!(jobs.by_change.len(), MAX_CONVERSATIONS);
        assert_eq!(jobs.infer(&hashes([5, 5], None)).id, format!("{PREFIX}8192"), "forgotten");
    }
}
