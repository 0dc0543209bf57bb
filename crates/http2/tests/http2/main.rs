//! The properties of the codec of HTTP/2 on what is worth keeping, and on what comes of it by chance.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use sluicegate_http2 as http2;
use sluicegate_time as time;

mod properties;

fn corpus() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http2/corpus");
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn the_corpus_holds() {
    let corpus = corpus();
    assert!(corpus.len() >= 6);
    for input in &corpus {
        properties::conversation(input);
    }
}

proptest! {
    #[test]
    fn what_is_like_the_corpus_holds(
        of: prop::sample::Index,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let corpus = corpus();
        let mut input = of.get(&corpus).clone();
        for (at, byte) in changes {
            let at = at.index(input.len());
            input[at] = byte;
        }
        properties::conversation(&input);
    }
}
