//! "Did you mean ...?": the known name that is nearest to a misspelt one.

/// Names that are compared with a misspelt one; a file with more of them goes without the suggestion.
const MAX_CANDIDATES: usize = 2_000;

/// Characters of a name that are compared.
const MAX_COMPARED: usize = 64;

/// The one of `known` that is nearest to `written`, if it is near enough to have been meant: at most one edit in three
/// characters (insert, delete, replace, or swap neighbours), letters of either case and `-` and `_` taken as equal.
pub fn nearest<'k>(written: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let written = folded(written);
    let length = written.chars().count();
    let bound = (length / 3).clamp(1, 3);
    known
        .into_iter()
        .take(MAX_CANDIDATES)
        .filter_map(|name| {
            let candidate = folded(name);
            if candidate.chars().count().abs_diff(length) > bound {
                return None;
            }
            let edits = strsim::osa_distance(&written, &candidate);
            (edits <= bound).then_some((edits, name))
        })
        .min()
        .map(|(_, name)| name)
}

fn folded(name: &str) -> String {
    let fold = |character: char| if character == '-' { '_' } else { character.to_ascii_lowercase() };
    name.chars().take(MAX_COMPARED).map(fold).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_only_what_may_have_been_meant() {
        let known = ["rate", "slots", "max_wait", "max_queue"];
        assert_eq!(nearest("max-wait", known), Some("max_wait"));
        assert_eq!(nearest("Rate", known), Some("rate"));
        assert_eq!(nearest("maxwait", known), Some("max_wait"));
        assert_eq!(nearest("slost", known), Some("slots"), "neighbours swapped are one edit");
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
