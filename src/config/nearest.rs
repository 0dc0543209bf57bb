//! "Did you mean ...?": the known name that is nearest to a misspelt one.

/// Names that are compared with a misspelt one; a file with more of them goes without the suggestion.
const MAX_CANDIDATES: usize = 2_000;

/// Characters of a name that are compared.
const MAX_COMPARED: usize = 64;

/// The one of `known` that is nearest to `written`, if it is near enough to have been meant: at most one edit in three
/// characters, letters of either case and `-` and `_` taken as equal.
pub fn nearest<'k>(written: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let written = folded(written);
    let bound = (written.len() / 3).clamp(1, 3);
    known
        .into_iter()
        .take(MAX_CANDIDATES)
        .filter_map(|name| {
            let candidate = folded(name);
            if candidate.len().abs_diff(written.len()) > bound {
                return None;
            }
            let edits = distance(&written, &candidate);
            (edits <= bound).then_some((edits, name))
        })
        .min()
        .map(|(_, name)| name)
}

fn folded(name: &str) -> Vec<char> {
    let fold = |character: char| if character == '-' { '_' } else { character.to_ascii_lowercase() };
    name.chars().take(MAX_COMPARED).map(fold).collect()
}

/// Edits (insert, delete, replace, swap of neighbours) from `a` to `b`: the optimal string alignment distance
/// (Damerau 1964, restricted form), three rows at a time.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut two_above: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    let mut previous_of_a = None;
    for (row, &of_a) in a.iter().enumerate() {
        let mut left = row + 1;
        let mut current = vec![left];
        let mut previous_of_b = None;
        for (column, (&of_b, pair)) in b.iter().zip(above.windows(2)).enumerate() {
            let &[diagonal, up] = pair else { continue };
            let replaced = diagonal + usize::from(of_a != of_b);
            let mut best = replaced.min(up + 1).min(left + 1);
            if previous_of_a == Some(of_b) && previous_of_b == Some(of_a) {
                // column >= 1 here, because there is a previous character of `b`.
                best = best.min(two_above.get(column - 1).map_or(usize::MAX, |edits| edits + 1));
            }
            current.push(best);
            left = best;
            previous_of_b = Some(of_b);
        }
        two_above = above;
        above = current;
        previous_of_a = Some(of_a);
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits(a: &str, b: &str) -> usize {
        distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
    }

    #[test]
    fn counts_edits() {
        assert_eq!(edits("", ""), 0);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", ""), 3);
        assert_eq!(edits("upstrem", "upstream"), 1);
        assert_eq!(edits("upstraem", "upstream"), 1, "neighbours swapped are one edit");
        assert_eq!(edits("ca", "abc"), 3, "no edit inside a swap");
        assert_eq!(edits("kitten", "sitting"), 3);
    }

    #[test]
    fn suggests_only_what_may_have_been_meant() {
        let known = ["rate", "slots", "max_wait", "max_queue"];
        assert_eq!(nearest("max-wait", known), Some("max_wait"));
        assert_eq!(nearest("Rate", known), Some("rate"));
        assert_eq!(nearest("maxwait", known), Some("max_wait"));
        assert_eq!(nearest("burst", known), None);
        assert_eq!(nearest("x", known), None);
        assert_eq!(nearest("", known), None);
    }

    #[test]
    fn prefers_the_nearest_then_the_alphabet() {
        assert_eq!(nearest("app2", ["app1", "app22", "app2x"]), Some("app1"));
        assert_eq!(nearest("api2", ["web", "api"]), Some("api"));
    }
}
