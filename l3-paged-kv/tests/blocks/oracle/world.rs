//! The manager, its naive model and a memory, living through the same story.

use std::collections::HashMap;
use std::fmt::Debug;

use l3_paged_kv::{
    Admission, BlockHash, BlockHasher, BlockId, BlockManager, CopyBlock, ExtraKeys, KvError,
    ManagerConfig, SeqId, TokenChain,
};

use super::memory::{Memory, content};
use super::naive::{Key, Naive};

/// Something that a scheduler may do. `who` counts around the living sequences.
#[derive(Clone, Debug)]
pub enum Deed {
    Admit { prompt: u8, len: u8, chunk: u8, whole: bool, keep_free: u8 },
    Advance { who: u8, tokens: u8 },
    Reserve { who: u8, tokens: u8 },
    Free { who: u8 },
    RollBack { who: u8, len: u8 },
    Commit,
    Abandon,
    Reset,
}

type Outcome = Result<(), String>;

/// A request: six prompts are told again and again, of which four begin alike.
struct Request {
    name: usize,
    id: SeqId,
    prompt: u8,
    /// How often it was rolled back: it goes on with other words each time.
    turns: u32,
    chain: TokenChain,
    computed: usize,
    /// When the step began, if it takes part in it.
    computed_before: Option<usize>,
}

fn salt(prompt: u8) -> &'static str {
    if prompt == 5 { "tenant" } else { "" }
}

fn token(prompt: u8, turns: u32, position: usize) -> u32 {
    let alike = match prompt {
        1 => 6,
        2 => 9,
        3 => 0,
        _ => usize::MAX,
    };
    let own = if position < alike { 0 } else { 100 * u32::from(prompt) };
    position as u32 + own + 1000 * turns
}

pub struct World {
    manager: BlockManager,
    naive: Naive,
    memory: Memory,
    hasher: BlockHasher,
    requests: Vec<Request>,
    next_name: usize,
    /// What every hash that was ever made stands for.
    known: HashMap<BlockHash, Key>,
    story: Vec<String>,
}

fn same<T: PartialEq + Debug>(got: T, expected: T, what: &str) -> Outcome {
    if got == expected {
        return Ok(());
    }
    Err(format!("{what}\n  expected  {expected:?}\n  got       {got:?}"))
}

/// Blocks that a refusal says are needed and free.
fn refusal<T>(result: &Result<T, KvError>) -> Option<(usize, usize)> {
    match result {
        Err(KvError::NoFreeBlocks { needed, free }) => Some((*needed, *free)),
        _ => None,
    }
}

impl World {
    pub fn new(num_blocks: usize, block_size: usize, prefix_caching: bool) -> Self {
        let config = ManagerConfig { prefix_caching, ..ManagerConfig::new(num_blocks, block_size) };
        Self {
            manager: BlockManager::new(config).unwrap(),
            naive: Naive::new(num_blocks, block_size, prefix_caching),
            memory: Memory::new(num_blocks, block_size),
            hasher: BlockHasher::new(block_size),
            requests: Vec::new(),
            next_name: 0,
            known: HashMap::new(),
            story: Vec::new(),
        }
    }

    pub fn story(&self) -> String {
        self.story.join("\n")
    }

    fn tell(&mut self, sentence: String) {
        self.story.push(format!("{:>3}. {sentence}", self.story.len() + 1));
    }

    pub fn run(&mut self, deed: &Deed) -> Outcome {
        let who = |who: u8| (!self.requests.is_empty()).then(|| who as usize % self.requests.len());
        match *deed {
            Deed::Admit { prompt, len, chunk, whole, keep_free } => {
                self.admit(prompt, len.into(), chunk.into(), whole, keep_free.into())?;
            }
            Deed::Advance { who: w, tokens } => match who(w) {
                Some(at) => self.advance(at, tokens.into())?,
                None => return Ok(()),
            },
            Deed::Reserve { who: w, tokens } => match who(w) {
                Some(at) => {
                    let up_to = self.requests[at].computed + usize::from(tokens);
                    self.reserve(at, up_to)?;
                }
                None => return Ok(()),
            },
            Deed::Free { who: w } => match who(w) {
                Some(at) => self.free(at)?,
                None => return Ok(()),
            },
            Deed::RollBack { who: w, len } => match who(w) {
                Some(at) => {
                    self.roll_back(at, usize::from(len) % (self.requests[at].computed + 1))?
                }
                None => return Ok(()),
            },
            Deed::Commit => self.commit(),
            Deed::Abandon => self.abandon()?,
            Deed::Reset => self.reset()?,
        }
        self.compare()
    }

    fn learn(&mut self, chain: &TokenChain, salt: &'static str) {
        let size = chain.block_size();
        for (index, hash) in chain.hashes().iter().enumerate() {
            let tokens = &chain.tokens()[..(index + 1) * size];
            self.known.entry(*hash).or_insert_with(|| (salt, tokens.to_vec()));
        }
    }

    fn chain(&self, prompt: u8, len: usize) -> TokenChain {
        let salt = Some(salt(prompt)).filter(|salt| !salt.is_empty());
        let keys = ExtraKeys { lora: None, cache_salt: salt.map(str::to_owned) };
        let mut chain = TokenChain::new(&self.hasher, keys);
        chain.extend(&(0..len).map(|position| token(prompt, 0, position)).collect::<Vec<_>>());
        chain
    }

    /// The step computes these tokens of a request.
    fn plan(&mut self, at: usize, from: usize, to: usize) {
        let request = &self.requests[at];
        let table = self.manager.table(request.id).unwrap().blocks();
        let write = |position: usize| {
            let what = content(salt(request.prompt), &request.chain.tokens()[..=position]);
            (position, self.memory.slot(table, position), what)
        };
        let writes = (from..to).map(write).collect();
        self.memory.plan(request.name, writes);
    }

    fn admit(&mut self, prompt: u8, len: usize, chunk: usize, whole: bool, keep: usize) -> Outcome {
        let chain = self.chain(prompt, len);
        self.learn(&chain, salt(prompt));
        let hit = self.manager.lookup(&chain);
        let up_to_len = (hit.tokens + 1 + 3 * chunk).min(len);
        let name = self.next_name;
        self.next_name += 1;
        self.tell(format!(
            "s{name} asks to be admitted: {len} tokens of prompt {prompt}, {} of them cached in {:?}; \
             room for {up_to_len}{}, {keep} to stay free",
            hit.tokens,
            hit.blocks,
            if whole { ", all must fit" } else { "" },
        ));
        let expected = self.naive.lookup(salt(prompt), chain.tokens());
        same(&hit.blocks, &expected, "the hit")?;

        let must_fit_len = if whole { len } else { 0 };
        let needed = [must_fit_len, up_to_len]
            .map(|len| self.naive.blocks_to_admit(&expected, len) + keep)
            .into_iter()
            .find(|needed| *needed > self.naive.free.len());
        let want = Admission { up_to_len, must_fit_len, keep_free: keep, resumed: false };
        let result = self.manager.admit(&chain, &hit, want);
        let refused = needed.map(|needed| (needed, self.naive.free.len()));
        same(refusal(&result), refused, "blocks needed and free, if it was refused")?;
        let Ok(id) = result else { return Ok(()) };
        self.naive.admit(name, salt(prompt), &expected, up_to_len);
        self.naive.register(name, chain.tokens(), up_to_len);
        self.manager.register(id, &chain, up_to_len).map_err(|e| e.to_string())?;
        let request = Request {
            name,
            id,
            prompt,
            turns: 0,
            chain,
            computed: up_to_len,
            computed_before: Some(0),
        };
        self.requests.push(request);
        self.plan(self.requests.len() - 1, hit.tokens, up_to_len);
        Ok(())
    }

    /// Whether there is room now.
    fn reserve(&mut self, at: usize, up_to: usize) -> Result<bool, String> {
        let (name, id) = (self.requests[at].name, self.requests[at].id);
        self.tell(format!("s{name} needs room for {up_to} tokens"));
        let missing = self.naive.missing(name, up_to);
        let free = self.naive.free.len();
        let result = self.manager.reserve(id, up_to).map(<[BlockId]>::to_vec);
        let refused = (missing > free).then_some((missing, free));
        same(refusal(&result), refused, "blocks needed and free, if it was refused")?;
        let Ok(new) = result else { return Ok(false) };
        let before = self.naive.seq(name).table.len();
        self.naive.grow(name, up_to);
        same(&new[..], &self.naive.seq(name).table[before..], "blocks that were appended")?;
        Ok(true)
    }

    fn advance(&mut self, at: usize, tokens: usize) -> Outcome {
        let from = self.requests[at].computed;
        let to = from + tokens;
        let request = &mut self.requests[at];
        while request.chain.len() < to {
            request.chain.push(token(request.prompt, request.turns, request.chain.len()));
        }
        let (name, id, chain) = (request.name, request.id, request.chain.clone());
        self.learn(&chain, salt(self.requests[at].prompt));
        if !self.reserve(at, to)? {
            return Ok(());
        }
        self.tell(format!("s{name} will compute tokens {from}..{to}"));
        self.manager.register(id, &chain, to).map_err(|e| e.to_string())?;
        self.naive.register(name, chain.tokens(), to);
        let request = &mut self.requests[at];
        request.computed_before.get_or_insert(from);
        request.computed = to;
        self.plan(at, from, to);
        Ok(())
    }

    fn names(&self, ids: &[SeqId]) -> Vec<usize> {
        let name = |id| self.requests.iter().find(|r| r.id == id).map_or(usize::MAX, |r| r.name);
        ids.iter().map(|id| name(*id)).collect()
    }

    fn bury(&mut self, names: &[usize]) {
        for name in names {
            self.memory.cancel(*name);
        }
        self.requests.retain(|request| !names.contains(&request.name));
    }

    fn free(&mut self, at: usize) -> Outcome {
        let (name, id) = (self.requests[at].name, self.requests[at].id);
        self.tell(format!("s{name} is freed"));
        let gone = self.manager.free(id).map_err(|e| e.to_string())?;
        let gone = self.names(&gone);
        same(&gone, &self.naive.free(name), "sequences that go with it")?;
        self.bury(&gone);
        self.bury(&[name]);
        Ok(())
    }

    fn roll_back(&mut self, at: usize, len: usize) -> Outcome {
        let (name, id) = (self.requests[at].name, self.requests[at].id);
        self.tell(format!("s{name} forgets its tokens from {len} on"));
        let result = self.manager.rollback(id, len);
        if self.naive.promised(name, len) {
            let refused = matches!(result, Err(KvError::Malformed(_)));
            return same(refused, true, "whether that is refused: others were promised the tokens");
        }
        let got: Result<Option<CopyBlock>, ()> = match result {
            Err(KvError::NoFreeBlocks { needed: 1, free: 0 }) => Err(()),
            other => Ok(other.map_err(|e| e.to_string())?),
        };
        same(got, self.naive.roll_back(name, len), "what is to be copied")?;
        let Ok(copy) = got else { return Ok(()) };
        self.memory.forget(name, len);
        if let Some(copy) = copy {
            self.memory.copy(copy);
        }
        let request = &mut self.requests[at];
        if len < request.computed {
            request.turns += 1;
            request.chain.truncate(len);
            request.computed = len;
            request.computed_before = request.computed_before.map(|before| before.min(len));
        }
        Ok(())
    }

    fn commit(&mut self) {
        self.tell("the step runs".to_owned());
        self.memory.run();
        self.manager.commit_step();
        self.naive.commit();
        self.requests.iter_mut().for_each(|request| request.computed_before = None);
    }

    fn abandon(&mut self) -> Outcome {
        self.tell("the step is abandoned".to_owned());
        let gone = self.manager.abandon_step();
        let gone = self.names(&gone);
        same(&gone, &self.naive.abandon(), "sequences that the step had admitted")?;
        self.memory.cancel_all();
        self.bury(&gone);
        for request in &mut self.requests {
            if let Some(before) = request.computed_before.take() {
                request.computed = before;
            }
        }
        Ok(())
    }

    fn reset(&mut self) -> Outcome {
        self.tell("the cache is to be reset".to_owned());
        let in_use = self.naive.users.iter().filter(|users| **users > 0).count();
        let got = match self.manager.reset_prefix_cache() {
            Err(KvError::InUse { in_use }) => in_use,
            _ => 0,
        };
        same(got, in_use, "blocks in use that forbid it")?;
        if in_use == 0 {
            self.naive.cached.clear();
        }
        Ok(())
    }

    /// Whether manager, model and memory still agree, on everything.
    fn compare(&self) -> Outcome {
        let pool = self.manager.pool();
        let free: Vec<BlockId> = pool.free_list().iter().collect();
        same(&free, &self.naive.free, "the free list")?;
        for block in 0..pool.num_blocks() {
            let users = pool.ref_count(block as BlockId).unwrap();
            same(users, self.naive.users[block], &format!("users of block {block}"))?;
        }
        for request in &self.requests {
            let table = self.manager.table(request.id).map_err(|e| e.to_string())?.blocks();
            let expected = &self.naive.seq(request.name).table[..];
            same(table, expected, &format!("the table of s{}", request.name))?;
        }
        for prompt in 0..6 {
            for len in [5, 9, 23] {
                let chain = self.chain(prompt, len);
                let expected = self.naive.lookup(salt(prompt), chain.tokens());
                let what = format!("the hit of {len} tokens of prompt {prompt}");
                same(self.manager.lookup(&chain).blocks, expected, &what)?;
            }
        }
        self.compare_contents()?;
        self.manager.check_invariants()
    }

    /// Hashes say what is in the blocks, or will be when this step has run; so do tables.
    fn compare_contents(&self) -> Outcome {
        let size = self.naive.size;
        for block in 1..self.manager.config().num_blocks as BlockId {
            let key = self.manager.cache().hash_of(block).map(|hash| &self.known[hash]);
            let expected = self.naive.cached.iter().find(|(_, b)| *b == block).map(|(key, _)| key);
            same(key, expected, &format!("what block {block} is cached as"))?;
            let Some((salt, tokens)) = key else { continue };
            for offset in 0..size {
                let position = tokens.len() - size + offset;
                let slot = block as usize * size + offset;
                if !self.memory.will_hold(slot, content(salt, &tokens[..=position])) {
                    return Err(format!(
                        "block {block} can be hit as the end of {tokens:?}, and nobody computed that, \
                         nor will in this step"
                    ));
                }
            }
        }
        for request in &self.requests {
            let table = self.manager.table(request.id).unwrap().blocks();
            for position in 0..request.computed {
                let what = content(salt(request.prompt), &request.chain.tokens()[..=position]);
                if !self.memory.will_hold(self.memory.slot(table, position), what) {
                    return Err(format!(
                        "s{} counts on token {position}, which nobody computed in its blocks {table:?}, \
                         nor will in this step",
                        request.name
                    ));
                }
            }
        }
        Ok(())
    }
}
