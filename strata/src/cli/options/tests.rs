//! What a command line, an environment and a file could say before the options had one definition, they still say.

use clap::CommandFactory;

use crate::cli::Cli;

/// Options of each subcommand with a value that must be accepted; hidden names and aliases included.
const ACCEPTED: [(&str, &str); 5] = [
    (
        "generate --prompts f",
        "--state=paged --block-size=1 --block-size=1073741824 --kv-dtype=auto --kv-dtype=bf16 --kv-dtype=f32 \
         --kv-dtype=fp8 --kv-memory=48KiB --device=cpu --device=cuda:1 --precision=auto --precision=f32 \
         --precision=bf16 --threads=1 --threads=1024 --batch-invariant --max-num-seqs=1 --max-num-batched-tokens=1 \
         --long-prefill-token-threshold=0 --max-model-len=2 --policy=fcfs --policy=priority --policy=strict-priority \
         --policy=continuum --policy=lmcache --policy=adaptive --continuum-ttl=fixed --continuum-ttl=cdf --infer-jobs \
         --policy=context-serve --policy=context_serve \
         --compose=mixed --compose=stable --max-decode-steps=1 --prefill-chunk=0 --no-prefix-caching --eager --trace=f \
         --adapter=d --max-lora-rank=8",
    ),
    (
        "bench serve-offline",
        "--state=paged --block-size=32 --kv-dtype=fp8 --kv-memory=2GiB --device=auto --precision=bf16 --threads=2 \
         --batch-invariant --max-num-seqs=3 --max-num-batched-tokens=16 --long-prefill-token-threshold=8 \
         --max-model-len=4096 --policy=priority --no-prefix-caching --eager --trace=f \
         --speculative-config={\"method\":\"ngram\",\"num_speculative_tokens\":64}",
    ),
    (
        "bench",
        "--state=contiguous --block-size=8 --kv-dtype=bf16 --kv-memory=2GiB --device=auto --precision=f32 --threads=2 \
         --batch-invariant --eager",
    ),
    (
        "simulate --workload f",
        "--rate=inf --requests=9 --seed=1 --policy=strict-priority --policy=continuum --continuum-ttl=cdf --infer-jobs \
         --cost-model=f --goodput=ttft:2 --json \
         --num-gpu-blocks=2 --block-size=1 --max-num-seqs=1 --max-num-batched-tokens=1 --max-model-len=2 \
         --long-prefill-token-threshold=0 --long-prefill-token-threshold-adaptive --no-enable-chunked-prefill \
         --no-enable-prefix-caching --no-scheduler-reserve-full-isl --watermark=0.1 --compose=stable \
         --max-decode-steps=8 --prefill-chunk=1K --adapter-turn=0 --decode-widths=1 --decode-widths=1,2,4,8",
    ),
    (
        "serve",
        "--device=cpu --precision=f32 --dtype=bfloat16 --dtype=float --threads=1024 --batch-invariant \
         --batch-invariant=false --eager --enforce-eager --eager=no --tensor-parallel-size=1 \
         --pipeline-parallel-size=1 --data-parallel-size=1 --api-server-count=1 --kv-memory=1GiB \
         --kv-cache-memory-bytes=1G --memory-utilization=1 --gpu-memory-utilization=0.5 --block-size=1K \
         --kv-dtype=float32 --kv-cache-dtype=fp8_e4m3 --enable-prefix-caching --enable-prefix-caching=false \
         --no-enable-prefix-caching --no-prefix-caching \
         --max-num-seqs=2k --max-num-batched-tokens=2K --max-model-len=auto --max-model-len=-1 --max-model-len=8K \
         --long-prefill-token-threshold=0 --policy=priority --scheduling-policy=fcfs --policy=adaptive --policy=context-serve \
         --continuum-ttl=cdf --infer-jobs --infer-jobs=false --enable-chunked-prefill \
         --enable-chunked-prefill=0 --no-enable-chunked-prefill --trace=f --max-num-waiting=1 --max-num-queued-reqs=1 \
         --max-queue-size=1 --compose=stable --max-decode-steps=4 --prefill-chunk=256 \
         --speculative-config={\"method\":\"suffix\"} --enable-lora --enable-lora=false --lora-modules=a=b \
         --lora-modules={\"name\":\"a\",\"path\":\"b\"} --max-lora-rank=8 --max-cpu-loras=2",
    ),
];

/// What no subcommand with this option may take.
const REFUSED: [&str; 26] = [
    "--block-size=0",
    "--block-size=12",
    "--block-size=2147483648",
    "--kv-dtype=int8",
    "--kv-memory=much",
    "--device=tpu",
    "--precision=int8",
    "--threads=0",
    "--threads=1025",
    "--max-num-seqs=0",
    "--max-num-batched-tokens=0",
    "--max-num-batched-tokens=1.5",
    "--long-prefill-token-threshold=-1",
    "--max-model-len=0",
    "--max-model-len=1",
    "--policy=lottery",
    "--continuum-ttl=2",
    "--compose=greedy",
    "--max-decode-steps=0",
    "--prefill-chunk=-1",
    "--decode-widths=1,0",
    "--speculative-config={}",
    "--lora-modules=a",
    "--lora-modules={}",
    "--max-lora-rank=0",
    "--max-cpu-loras=0",
];

/// Parses a command line, whose words are separated by spaces.
fn parse(line: &str) -> Result<clap::ArgMatches, clap::Error> {
    Cli::command().try_get_matches_from(std::iter::once("strata").chain(line.split_whitespace()))
}

#[test]
fn every_option_is_accepted_with_the_values_that_it_always_had() {
    for (command, options) in ACCEPTED {
        for option in options.split_whitespace() {
            let line = format!("{command} {option}");
            assert!(parse(&line).is_ok(), "{line}: {}", parse(&line).unwrap_err());
        }
    }
}

#[test]
fn every_command_refuses_the_same_values() {
    for (command, options) in ACCEPTED {
        let takes = |bad: &str| options.contains(bad.split('=').next().unwrap());
        for bad in REFUSED.into_iter().filter(|bad| takes(bad)) {
            assert!(parse(&format!("{command} {bad}")).is_err(), "{command} {bad}");
        }
    }
}

#[test]
fn an_option_is_one_definition_in_every_command() {
    let cli = Cli::command();
    let find = |path: &str| {
        path.split(' ').fold(&cli, |command, name| command.find_subcommand(name).unwrap())
    };
    let help = |command: &clap::Command, long: &str| {
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(long))?;
        let help = arg.get_help()?.to_string();
        let defaults: Vec<_> = arg.get_default_values().to_vec();
        let aliases: Vec<_> =
            arg.get_all_aliases().unwrap_or_default().into_iter().map(str::to_owned).collect();
        // The default that a command computes is its own.
        Some((help.split(" [default: ").next()?.to_owned(), defaults, aliases))
    };
    let serve = find("serve");
    let others = ["generate", "bench serve-offline", "simulate", "bench", "chat"].map(find);
    for long in [
        "model",
        "device",
        "precision",
        "threads",
        "batch-invariant",
        "eager",
        "kv-memory",
        "kv-dtype",
        "block-size",
        "enable-prefix-caching",
        "max-num-seqs",
        "max-num-batched-tokens",
        "max-model-len",
        "long-prefill-token-threshold",
        "policy",
        "continuum-ttl",
        "infer-jobs",
        "compose",
        "max-decode-steps",
        "prefill-chunk",
        "enable-chunked-prefill",
        "speculative-config",
        "max-lora-rank",
        "trace",
    ] {
        let own = help(serve, long).unwrap();
        let same: Vec<_> = others.iter().filter_map(|command| help(command, long)).collect();
        assert!(!same.is_empty(), "{long}");
        same.iter().for_each(|other| assert_eq!(*other, own, "{long}"));
    }
}
