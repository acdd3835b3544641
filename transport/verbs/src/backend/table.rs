//! What follows from the table of verbs here: the trait of a device, the device of the daemon, and
//! the plain calls.

#[allow(clippy::wildcard_imports, reason = "what the table of verbs names")]
use xroce_api::types::*;

#[cfg(feature = "daemon")]
use xroce_api::Request;

#[cfg(feature = "daemon")]
use super::remote::Remote;
use crate::channel::Channel;
use crate::error::VerbsError;
use crate::raw::RawDevice;

macro_rules! expand {
    (
        calls { $(
            $(#[$call_doc:meta])*
            $call:ident $Call:ident $(($($call_arg:ident: $call_type:ty),*))? -> $call_answer:ty;
        )* }
        ends { $(
            $(#[$end_doc:meta])*
            $end:ident $End:ident($($end_arg:ident: $end_type:ty),*) -> $end_answer:ty;
        )* }
        carries { $(
            $(#[$carry_doc:meta])*
            $carry:ident($($own_arg:ident: $own_type:ty),*) -> $own_answer:ty
                as $Carry:ident $(($($carry_arg:ident: $carry_type:ty),* $(,)?))? -> $carry_answer:ty;
        )* }
        $($rest:tt)*
    ) => {
        /// The verbs of a device that is open, as in the table.
        pub(crate) trait Verbs {
            $(
                $(#[$call_doc])*
                fn $call(&self, $($($call_arg: $call_type),*)?) -> Result<$call_answer, VerbsError>;
            )*
            $(
                $(#[$end_doc])*
                fn $end(&self, $($end_arg: $end_type),*) -> Result<$end_answer, VerbsError>;
            )*
            $(
                $(#[$carry_doc])*
                fn $carry(&self, $($own_arg: $own_type),*) -> Result<$own_answer, VerbsError>;
            )*
        }

        /// Each as a request of the same name. For those that carry something, `Remote` has a
        /// method of that name.
        #[cfg(feature = "daemon")]
        impl Verbs for Remote {
            $(
                fn $call(&self, $($($call_arg: $call_type),*)?) -> Result<$call_answer, VerbsError> {
                    self.ask(&Request::$Call $({ $($call_arg),* })?)
                }
            )*
            $(
                fn $end(&self, $($end_arg: $end_type),*) -> Result<$end_answer, VerbsError> {
                    self.ask_end(&Request::$End { $($end_arg),* })
                }
            )*
            $(
                fn $carry(&self, $($own_arg: $own_type),*) -> Result<$own_answer, VerbsError> {
                    Self::$carry(self, $($own_arg),*)
                }
            )*
        }

        /// Those that are alike on every side.
        impl RawDevice {
            $(
                $(#[$call_doc])*
                ///
                /// # Errors
                /// See [`VerbsError`].
                pub fn $call(
                    &self,
                    $($($call_arg: $call_type),*)?
                ) -> Result<$call_answer, VerbsError> {
                    self.backend().$call($($($call_arg),*)?)
                }
            )*
            $(
                $(#[$end_doc])*
                ///
                /// # Errors
                /// See [`VerbsError`].
                pub fn $end(&self, $($end_arg: $end_type),*) -> Result<$end_answer, VerbsError> {
                    self.backend().$end($($end_arg),*)
                }
            )*
        }
    };
}

xroce_api::verbs!(expand);
