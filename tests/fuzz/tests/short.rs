//! The short run: each target with its corpus and brief mutations of it. Deterministic, so that a failure is caused by
//! the change under test. `FORGE_FUZZ_SEED` selects other mutations, `FORGE_FUZZ_SECONDS` sets the time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use forge_fuzz::{TARGETS, Target};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

const LONGEST: usize = 4096;
const SEED: u64 = 1;
/// Dictionary of tokens with a meaning to some parser.
const WORDS: &str = include_str!("../words.dict");

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name);
    let entries =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn words() -> Vec<Vec<u8>> {
    let quoted = WORDS
        .lines()
        .filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    quoted
        .map(|word| {
            word.replace("\\\"", "\"")
                .replace("\\\\", "\\")
                .into_bytes()
        })
        .collect()
}

fn change(data: &mut Vec<u8>, random: &mut SmallRng, corpus: &[Vec<u8>], words: &[Vec<u8>]) {
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=data.len());
        let end = random.random_range(at..=data.len().min(at + 16));
        match random.random_range(0..6) {
            0 => data.splice(at..end, None::<u8>).for_each(drop),
            1 => data.insert(at, random.random()),
            2 => data
                .splice(at..end, words.choose(random).unwrap().clone())
                .for_each(drop),
            3 => {
                let piece = data[at..end].to_vec();
                data.splice(at..at, piece).for_each(drop);
            }
            4 => {
                let other = corpus.choose(random).unwrap();
                let from = random.random_range(0..=other.len());
                data.splice(at.., other[from..].iter().copied())
                    .for_each(drop);
            }
            _ => {
                if let Some(byte) = data.get_mut(at) {
                    *byte ^= 1 << random.random_range(0..8);
                }
            }
        }
    }
    data.truncate(LONGEST);
}

#[test]
fn no_target_fails() {
    let seed = number("FORGE_FUZZ_SEED").unwrap_or(SEED);
    let moment = Duration::from_millis(number("FORGE_FUZZ_SECONDS").map_or(150, |s| s * 1000));
    println!("FORGE_FUZZ_SEED={seed}");
    let words = words();
    for target in TARGETS {
        let corpus = corpus(target);
        assert!(!corpus.is_empty(), "{} has no corpus", target.name);
        let run = |data: &[u8]| {
            if catch_unwind(AssertUnwindSafe(|| (target.run)(data))).is_err() {
                let shown = data.escape_ascii();
                panic!(
                    "{} fails on b\"{shown}\" (FORGE_FUZZ_SEED={seed})",
                    target.name
                );
            }
        };
        corpus.iter().for_each(|data| run(data));
        let mut random = SmallRng::seed_from_u64(seed);
        let (mut count, start) = (0, Instant::now());
        while start.elapsed() < moment {
            let mut data = corpus.choose(&mut random).unwrap().clone();
            change(&mut data, &mut random, &corpus, &words);
            run(&data);
            count += 1;
        }
        println!(
            "{:<14} {} files, {count} changed",
            target.name,
            corpus.len()
        );
    }
}
