//! The kinds of rules that can be edited one by one.

words! {
    /// A kind of entries of the configuration, each with a name.
    pub enum RuleKind {
        /// `[[route]]`
        Route = "route",
        /// `[[limit]]`
        Limit = "limit",
        /// `[[upstream]]`
        Upstream = "upstream",
        /// `[[bandwidth]]`
        Bandwidth = "bandwidth",
    }
}

impl RuleKind {
    /// Several of them in one word, as paths of the API name them.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Route => "routes",
            Self::Limit => "limits",
            Self::Upstream => "upstreams",
            Self::Bandwidth => "bandwidths",
        }
    }

    /// The kind of this plural.
    pub fn from_plural(plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.plural() == plural)
    }
}
