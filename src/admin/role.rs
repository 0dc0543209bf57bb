//! Roles: how much whoever asks may do.

words! {
    /// The role that a caller needs. Each role includes those before it.
    #[derive(PartialOrd, Ord)]
    pub(super) enum Role {
        /// Everybody, without a token.
        Open = "open",
        /// May look.
        Read = "read",
        /// May reset keys, take servers out of service, reload.
        Operate = "operate",
        /// May change the configuration file.
        Rules = "rules",
    }
}
