use std::fmt;

words! {
    /// Why a request cannot be understood without guessing: it is answered with 400. Its text is for the client.
    pub enum Malformed {
        /// The method has a small letter. Methods are told apart by case (RFC 9110, 9.1), and some servers read `post` as
        /// `POST`: what is for `POST` alone would not see it. No method that is registered has one.
        MethodCase = "method-case",
        /// The path does not begin with `/` (and is not the `*` of OPTIONS).
        PathForm = "path-form",
        /// The path holds a byte that no path may hold: a control byte, a space, a byte above 0x7E, `#` or `?`.
        PathByte = "path-byte",
        /// The path holds a `%` that is not followed by two hex digits.
        PathEncoding = "path-encoding",
        /// The path holds `%00`.
        PathNul = "path-nul",
        /// The path holds an encoded slash or a backslash, and its route does not allow that.
        EncodedSlash = "encoded-slash",
        /// The path holds a segment `.` or `..`, also as `%2e`, and its route passes paths on as they came.
        DotSegments = "dot-segments",
        /// The host, or its port, is none.
        Authority = "host-invalid",
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MethodCase => "The method has a small letter.",
            Self::PathForm => "The path does not begin with a slash.",
            Self::PathByte => "The path holds a character that must be percent-encoded.",
            Self::PathEncoding => "The path holds a percent sign without two hex digits.",
            Self::PathNul => "The path holds an encoded NUL.",
            Self::EncodedSlash => "The path holds an encoded slash or a backslash.",
            Self::DotSegments => "The path holds a dot segment.",
            Self::Authority => "The host is not valid.",
        })
    }
}

impl std::error::Error for Malformed {}
