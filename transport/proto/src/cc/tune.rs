//! Parameters by name: what operators set in files, on command lines and at run time.
//!
//! [`params!`](crate::params!) makes a struct of numbers together with its table, so that every
//! parameter has its unit, its limits and its meaning in one place, and none can be left out of a
//! command line, a scenario or a document.

/// What is to be known about a parameter of `T`.
#[derive(Debug)]
pub struct ParamInfo<T> {
    /// Its name, as the vendor or the paper has it.
    pub name: &'static str,
    /// Its unit, empty for a plain number.
    pub unit: &'static str,
    /// Least value allowed.
    pub min: u64,
    /// Largest value allowed.
    pub max: u64,
    /// What it does.
    pub meaning: &'static str,
    /// Its value.
    pub get: fn(&T) -> u64,
    /// Sets it, within the limits or not.
    pub set: fn(&mut T, u64),
}

/// Why a parameter was not set, or an algorithm not made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// No algorithm of that name.
    #[error("there is no congestion control {given:?}; there are: {known}")]
    Algorithm {
        /// Name given.
        given: alloc::string::String,
        /// Names there are.
        known: &'static str,
    },
    /// No parameter of that name.
    #[error("{algorithm} has no parameter {given:?}; it has: {known}")]
    Unknown {
        /// Name of the algorithm.
        algorithm: &'static str,
        /// Name given.
        given: alloc::string::String,
        /// Names there are.
        known: alloc::string::String,
    },
    /// The value is out of range.
    #[error("{name} is {given}{unit}, it must be {min} to {max}{unit}")]
    Value {
        /// Name of the parameter.
        name: &'static str,
        /// Its unit.
        unit: &'static str,
        /// Value given.
        given: u64,
        /// Least value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// The algorithm has to know how fast the link is.
    #[error("{algorithm} starts at the rate of the link, which has to be given and not be 0")]
    LineRate {
        /// Name of the algorithm.
        algorithm: &'static str,
    },
}

/// A struct of `u64` parameters with a table of [`ParamInfo`] as its `TABLE`, and with `set` and
/// `validate`.
///
/// A field is its documentation, `pub name: "unit", min, max`.
#[macro_export]
macro_rules! params {
    (
        $(#[$meta:meta])*
        pub struct $Name:ident of $algorithm:literal {
            $(
                $(#[doc = $doc:literal])+
                pub $field:ident: $unit:literal, $min:expr, $max:expr;
            )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $Name {
            $(
                $(#[doc = $doc])+
                pub $field: u64,
            )+
        }

        impl $Name {
            /// Every parameter, in the order of the fields.
            pub const TABLE: &'static [$crate::cc::ParamInfo<Self>] = &[$(
                $crate::cc::ParamInfo {
                    name: stringify!($field),
                    unit: $unit,
                    min: $min,
                    max: $max,
                    meaning: concat!($($doc),+),
                    get: |params| params.$field,
                    set: |params, value| params.$field = value,
                },
            )+];

            /// Sets a parameter by its name.
            ///
            /// # Errors
            /// There is none of that name, or the value is out of range; nothing changed.
            pub fn set(&mut self, name: &str, value: u64) -> Result<(), $crate::cc::TuneError> {
                let Some(info) = Self::TABLE.iter().find(|info| info.name == name) else {
                    let names = Self::TABLE.iter().map(|info| info.name);
                    let mut known = ::alloc::string::String::new();
                    for name in names {
                        if !known.is_empty() {
                            known.push_str(", ");
                        }
                        known.push_str(name);
                    }
                    return Err($crate::cc::TuneError::Unknown {
                        algorithm: $algorithm,
                        given: name.into(),
                        known,
                    });
                };
                $crate::cc::check(info.name, info.unit, value, (info.min, info.max))?;
                (info.set)(self, value);
                Ok(())
            }

            /// The same with some of them changed, by their names.
            ///
            /// # Errors
            /// As [`Self::set`].
            pub fn with(mut self, params: &[(&str, u64)]) -> Result<Self, $crate::cc::TuneError> {
                params.iter().try_for_each(|&(name, value)| self.set(name, value))?;
                Ok(self)
            }

            /// Every parameter brought into its range.
            #[must_use]
            pub fn clamped(mut self) -> Self {
                for info in Self::TABLE {
                    let value = (info.get)(&self).clamp(info.min, info.max);
                    (info.set)(&mut self, value);
                }
                self
            }

            /// # Errors
            /// The first parameter that is out of range.
            pub fn validate(&self) -> Result<(), $crate::cc::TuneError> {
                Self::TABLE.iter().try_for_each(|info| {
                    let range = (info.min, info.max);
                    $crate::cc::check(info.name, info.unit, (info.get)(self), range)
                })
            }
        }
    };
}

/// Whether a value is within `range`, both ends included.
#[doc(hidden)]
pub fn check(
    name: &'static str,
    unit: &'static str,
    given: u64,
    range: (u64, u64),
) -> Result<(), TuneError> {
    let (min, max) = range;
    if (min..=max).contains(&given) {
        return Ok(());
    }
    Err(TuneError::Value {
        name,
        unit,
        given,
        min,
        max,
    })
}
