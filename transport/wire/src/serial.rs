//! Quantities as they stand in messages between processes: plain numbers, checked when read.

use core::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::newtypes::{Gid, LKey, MacAddr, PKey, PathMtu, Psn, QKey, Qpn, RKey, Va, VlanTci};
use crate::syndrome::RnrTimer;

const BITS_24: u32 = 0x00ff_ffff;

/// A newtype as the number it holds; the check says why a number cannot be.
macro_rules! as_number {
    ($($Type:ident as $Number:ty, $get:expr, $check:expr;)+) => {$(
        impl Serialize for $Type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let get: fn(&Self) -> $Number = $get;
                get(self).serialize(to)
            }
        }

        impl<'de> Deserialize<'de> for $Type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let given = <$Number>::deserialize(from)?;
                let check: fn($Number) -> Option<Self> = $check;
                check(given).ok_or_else(|| {
                    de::Error::custom(format_args!(concat!("there is no ", stringify!($Type), " {}"), given))
                })
            }
        }
    )+};
}

as_number! {
    Psn as u32, |psn| psn.value(), |n| (n <= BITS_24).then(|| Self::new(n));
    Qpn as u32, |qpn| qpn.value(), |n| (n <= BITS_24).then(|| Self::new(n));
    PKey as u16, |key| key.value(), |n| Some(Self::new(n));
    QKey as u32, |key| key.value(), |n| Some(Self::new(n));
    LKey as u32, |key| key.value(), |n| Some(Self::new(n));
    RKey as u32, |key| key.value(), |n| Some(Self::new(n));
    Va as u64, |va| va.value(), |n| Some(Self::new(n));
    VlanTci as u16, |tci| tci.value(), |n| Some(Self::new(n));
    RnrTimer as u8, |timer| timer.code(), |n| Self::new(n);
    PathMtu as u64, |mtu| mtu.bytes() as u64, |n| Self::from_bytes(usize::try_from(n).ok()?);
}

impl Serialize for Gid {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.ip().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Gid {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        IpAddr::deserialize(from).map(Self::from)
    }
}

impl Serialize for MacAddr {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.bytes().serialize(to)
    }
}

impl<'de> Deserialize<'de> for MacAddr {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        <[u8; 6]>::deserialize(from).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back<T>(value: &T) -> String
    where
        T: Serialize + de::DeserializeOwned + PartialEq + core::fmt::Debug,
    {
        let text = serde_json::to_string(value).unwrap();
        assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value);
        text
    }

    #[test]
    fn quantities_are_numbers() {
        assert_eq!(there_and_back(&Psn::new(0x00ab_cdef)), "11259375");
        assert_eq!(there_and_back(&Qpn::new(17)), "17");
        assert_eq!(there_and_back(&PKey::DEFAULT), "65535");
        assert_eq!(there_and_back(&PathMtu::Mtu4096), "4096");
        assert_eq!(there_and_back(&Va::new(u64::MAX)), u64::MAX.to_string());
        assert_eq!(there_and_back(&Gid::from_v4([10, 0, 0, 1])), "\"10.0.0.1\"");
        assert_eq!(
            there_and_back(&MacAddr::new([1, 2, 3, 4, 5, 6])),
            "[1,2,3,4,5,6]"
        );
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_with_their_value() {
        let refused = |text: &str| serde_json::from_str::<Qpn>(text).unwrap_err().to_string();
        assert!(refused("16777216").contains("no Qpn 16777216"));
        assert!(refused("-1").contains("-1"));
        let refused = serde_json::from_str::<PathMtu>("1500").unwrap_err();
        assert!(refused.to_string().contains("no PathMtu 1500"));
        let refused = serde_json::from_str::<RnrTimer>("32").unwrap_err();
        assert!(refused.to_string().contains("no RnrTimer 32"));
        assert!(serde_json::from_str::<Psn>("16777216").is_err());
    }
}
