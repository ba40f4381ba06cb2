//! Which tiers an engine has.

use std::path::PathBuf;
use std::sync::Arc;

use l2_model::ModelDigest;
use l3_paged_kv::KvError;
use l3_paged_kv::sizing::Bytes;
use l3_paged_kv::tier::{
    Breaker, BreakerOptions, ChunkLayout, Clock, DEFAULT_CHUNK_TOKENS, DiskError, DiskOptions,
    DiskTier, DramTier, KeySpace, KvTier, Numerics, RedisOptions, RedisTier, SystemClock,
    TierStack,
};

use super::Tiers;

/// Tiers of an engine. [`Default`] has none.
#[derive(Clone, Debug)]
pub struct TierOptions {
    /// Tokens of a chunk, a multiple of the block size.
    pub chunk_tokens: usize,
    /// Bytes of DRAM. 0: no such tier.
    pub dram: u64,
    /// Directory for chunks, and the maximum number of bytes of its files.
    pub disk: Option<(PathBuf, u64)>,
    /// Redis or Valkey server, which other engines may share.
    pub redis: Option<RedisOptions>,
    /// When a tier is given up for a while.
    pub breaker: BreakerOptions,
}

impl Default for TierOptions {
    fn default() -> Self {
        let (chunk_tokens, breaker) = (DEFAULT_CHUNK_TOKENS, BreakerOptions::default());
        Self { chunk_tokens, dram: 0, disk: None, redis: None, breaker }
    }
}

/// Why tiers cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TierOptionsError {
    /// The length of a chunk.
    #[error(transparent)]
    Chunk(#[from] KvError),
    /// The directory.
    #[error("{}: {why}", dir.display())]
    Disk {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        why: DiskError,
    },
    /// The thread that talks to the server cannot be started.
    #[error("the thread for the Redis server cannot be started: {0}")]
    Redis(std::io::Error),
    /// The model has no digest.
    #[error("keys and values of a model without a checkpoint cannot be kept: leave the tiers out")]
    NoDigest,
}

impl TierOptions {
    /// Whether there are any tiers.
    pub fn has_any(&self) -> bool {
        self.dram > 0 || self.disk.is_some() || self.redis.is_some()
    }

    /// The tiers and their sizes, a line for each, for keys and values of so many bytes a token. Says of which tiers no
    /// chunk fits into, and warns of them in the log.
    pub fn summary(&self, bytes_per_token: u64) -> String {
        let chunk = self.chunk_tokens as u64 * bytes_per_token;
        let sized = |name: String, size: u64| {
            if size >= chunk {
                return format!("\n{name}: {}", Bytes(size));
            }
            let why = format!("{name}: {} hold no chunk of {}", Bytes(size), Bytes(chunk));
            tracing::warn!("tiers: {why}: make it larger, or chunks smaller");
            format!("\n{why}")
        };
        let mut text = format!("chunks of {} tokens, {}", self.chunk_tokens, Bytes(chunk));
        if self.dram > 0 {
            text += &sized("dram".to_owned(), self.dram);
        }
        if let Some((dir, size)) = &self.disk {
            text += &sized(format!("disk {}", dir.display()), *size);
        }
        if let Some(redis) = &self.redis {
            text += &format!("\nredis {}", redis.server);
        }
        text
    }

    /// Opens the tiers for a model that is run in these number formats, in blocks of this size. `None` if there are no
    /// tiers.
    ///
    /// # Errors
    /// [`TierOptionsError`].
    pub fn open(
        &self,
        digest: Option<&ModelDigest>,
        numerics: &Numerics,
        block_size: usize,
    ) -> Result<Option<Tiers>, TierOptionsError> {
        if !self.has_any() {
            return Ok(None);
        }
        let digest = digest.ok_or(TierOptionsError::NoDigest)?;
        let layout = ChunkLayout::new(block_size, self.chunk_tokens)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let mut tiers: Vec<Box<dyn KvTier>> = Vec::new();
        if self.dram > 0 {
            tiers.push(Box::new(DramTier::new(self.dram)));
        }
        if let Some((dir, bytes)) = &self.disk {
            let disk = DiskTier::open(dir, DiskOptions::new(*bytes))
                .map_err(|why| TierOptionsError::Disk { dir: dir.clone(), why })?;
            tiers.push(Box::new(Breaker::new(disk, self.breaker, clock.clone())));
        }
        if let Some(redis) = &self.redis {
            let redis =
                RedisTier::start(redis.clone(), clock.clone()).map_err(TierOptionsError::Redis)?;
            tiers.push(Box::new(Breaker::new(redis, self.breaker, clock)));
        }
        // The digest of an adapter is in the hashes of its blocks: see `RequestAdapter::scheduled`.
        let space = KeySpace::new(digest, None, numerics, layout);
        Ok(Some(Tiers::new(Box::new(TierStack::new(tiers)), layout, space)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_names_sizes_and_tiers_without_room_for_a_chunk() {
        let disk = Some(("/kv".into(), 2 << 20));
        let options = TierOptions { dram: 4 << 20, disk, ..TierOptions::default() };
        assert_eq!(
            options.summary(16 << 10),
            "chunks of 256 tokens, 4 MiB\ndram: 4 MiB\ndisk /kv: 2 MiB hold no chunk of 4 MiB"
        );
        assert!(options.has_any() && !TierOptions::default().has_any());
    }
}
