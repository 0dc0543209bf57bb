//! Enums whose variants are words: of the file, of metrics, of logs. [`words!`](crate::words!) takes the enum, its words and
//! their docs in one form, so that a word is parsed, shown, suggested and counted by what is declared once.
//!
//! It lies below all rooms, and each of them may use it.

use std::fmt;

/// A word of a fixed set. Made by [`words!`](crate::words!) alone.
pub trait Word: Copy + Eq + fmt::Debug + 'static {
    /// All of them, as they are declared: each stands at its own place, `self as usize`.
    const ALL: &'static [Self];

    /// As it is written.
    fn word(self) -> &'static str;

    /// Its own doc comment.
    fn doc(self) -> &'static str;

    /// The one that is written so.
    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|own| own.word() == word)
    }
}

/// An enum and the word of each variant, and the variant that is its `Default` if one is named:
///
/// ```
/// use sluicegate_words::Word;
///
/// sluicegate_words::words! {
///     /// A size.
///     pub enum Size default Small {
///         /// Up to ten.
///         Small = "small",
///         /// More.
///         Large = "large",
///     }
/// }
/// assert_eq!(Size::from_word("large"), Some(Size::Large));
/// assert_eq!(Size::default().word(), "small");
/// // A table of one entry for each word is asked by the word itself.
/// let table = Size::ALL.map(|size| size.word().len());
/// assert_eq!(table[Size::Large as usize], 5);
/// assert_eq!(Size::Large.doc(), " More.");
/// ```
#[macro_export]
macro_rules! words {
    (
        $(#[$attribute:meta])*
        $visible:vis enum $Name:ident $(default $Default:ident)? {
            $( $(#[doc = $doc:expr])+ $Variant:ident = $word:expr, )+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $visible enum $Name {
            $( $(#[doc = $doc])+ $Variant, )+
        }

        impl $Name {
            /// All of them, as they are declared: each stands at its own place, `self as usize`.
            pub const ALL: [Self; [$( $word ),+].len()] = [$( Self::$Variant ),+];

            /// As it is written.
            pub const fn word(self) -> &'static str {
                match self { $( Self::$Variant => $word, )+ }
            }
        }

        $(
            #[allow(clippy::derivable_impls, reason = "the macro writes it, so that a variant needs no attribute")]
            impl Default for $Name {
                fn default() -> Self {
                    Self::$Default
                }
            }
        )?

        impl $crate::Word for $Name {
            const ALL: &'static [Self] = &Self::ALL;

            fn word(self) -> &'static str {
                Self::word(self)
            }

            fn doc(self) -> &'static str {
                match self { $( Self::$Variant => concat!($( $doc ),+), )+ }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::Word;

    words! {
        /// Of a test.
        enum Colour {
            /// As blood.
            Red = "red",
            /// As grass, and
            /// as leaves.
            Green = "light-green",
        }
    }

    #[test]
    fn a_word_is_read_as_it_is_written_and_stands_at_its_own_place() {
        for (place, colour) in Colour::ALL.into_iter().enumerate() {
            assert_eq!((colour as usize, Colour::from_word(colour.word())), (place, Some(colour)));
        }
        assert_eq!(Colour::from_word("Red"), None);
        assert_eq!(
            <Colour as Word>::ALL.iter().map(|colour| colour.doc()).collect::<Vec<_>>(),
            [" As blood.", " As grass, and as leaves."]
        );
    }
}
