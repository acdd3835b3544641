use proptest::prelude::*;

use super::*;

const KEY: &[u8; KEY_LEN] = b"0000:0010:000011:45b320:00001234:00007f0123456000:\
    00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01:00000000:\0";

fn key() -> Key {
    Key {
        out_reads: 16,
        qpn: 0x11,
        psn: 0x0045_b320,
        rkey: 0x1234,
        va: 0x7f01_2345_6000,
        gid: Gid::from_v4([10, 0, 0, 1]),
    }
}

#[test]
fn a_key_byte_for_byte() {
    assert_eq!(
        key().encode().escape_ascii().to_string(),
        KEY.escape_ascii().to_string()
    );
    assert_eq!(Key::parse(KEY), Ok(key()));
}

/// The example of `ibv_rc_pingpong`.
#[test]
fn an_address_byte_for_byte() {
    let message = b"0000:000011:45b320:00000000000000000000ffff7f000001\0";
    let address = Address {
        qpn: 0x11,
        psn: 0x0045_b320,
        gid: Gid::from_v4([127, 0, 0, 1]),
    };
    assert_eq!(&address.encode(), message);
    assert_eq!(Address::parse(message), Ok(address));
}

#[test]
fn small_messages_byte_for_byte() {
    assert_eq!(&version(), b"6.06\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(&mtu(PathMtu::Mtu1024), b"3\0");
    assert_eq!(parse_mtu(*b"5\0"), Ok(PathMtu::Mtu4096));
    assert_eq!(CYCLE_BUFFER.to_be_bytes(), [0, 0, 16, 0]);
    assert_eq!(
        parse_number("cycle_buffer", [0, 1, 0, 0], MAX_CYCLE_BUFFER),
        Ok(65536)
    );
    assert_eq!(&DONE, b"done\0");
}

#[test]
fn a_report_byte_for_byte() {
    let report = PeerReport {
        size: 65536,
        iterations: 5000,
        peak_mib_per_s: 1.0,
        average_mib_per_s: 0.5,
        mega_messages_per_s: -2.0,
    };
    let messages = report.encode();
    assert_eq!(messages[0], [0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(messages[1], [0, 0, 0, 0, 0, 0, 0x13, 0x88]);
    assert_eq!(messages[2], [0x3f, 0xf0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(messages[3], [0x3f, 0xe0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(messages[4], [0xc0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(PeerReport::parse(messages), report);
}

fn padded_version(text: &str) -> [u8; 16] {
    padded(text)
}

#[test]
fn versions_from_5_70_on() {
    for good in ["5.70", "5.7", "5.93", "6.06", "6.29", "10.0"] {
        let version = parse_version(&padded_version(good)).unwrap();
        assert_eq!(version.text, good);
        let later = ["6.29", "10.0"].contains(&good);
        assert_eq!(version.is_later(), later, "{good}");
    }
    for (bad, words) in [
        ("5.69", "5.70"),
        ("5.6", "5.70"),
        ("0.0", "5.70"),
        ("", "a version"),
        ("6", "a version"),
        ("6.", "a version"),
        (".70", "a version"),
        ("6.060", "a version"),
        ("6.0x", "a version"),
        ("+6.06", "a version"),
        ("inf", "a version"),
        ("99999.0", "a version"),
        ("GET / HTTP/1.1", "GET / HTTP"),
        ("XRPF", "without --compat"),
    ] {
        let error = parse_version(&padded_version(bad)).unwrap_err().to_string();
        assert!(error.contains(words), "{bad}: {error}");
    }
}

#[test]
fn bad_numbers_and_mtus() {
    for bad in [[0; 4], [0xff; 4], [1, 0, 0, 1]] {
        let error = parse_number("cycle_buffer", bad, MAX_CYCLE_BUFFER).unwrap_err();
        assert!(error.to_string().contains("cycle_buffer"), "{error}");
    }
    for bad in [*b"0\0", *b"6\0", *b"33", *b"\0\0", [0xff, 0]] {
        let error = parse_mtu(bad).unwrap_err().to_string();
        assert!(error.contains("1 (256 bytes)"), "{error}");
    }
}

/// Every byte matters but the digits, which may be any.
#[test]
fn a_key_with_any_byte_wrong_is_refused() {
    for at in 0..KEY_LEN {
        let mut message = *KEY;
        message[at] = b'x';
        let error = Key::parse(&message).unwrap_err().to_string();
        assert!(error.contains("\"key\""), "{error}");
    }
    for at in 0..ADDRESS_LEN {
        let mut message = *b"0000:000011:45b320:00000000000000000000ffff7f000001\0";
        message[at] = b'+';
        assert!(Address::parse(&message).is_err());
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in any::<[u8; KEY_LEN]>()) {
        let _ = Key::parse(&bytes);
        let _ = Address::parse(bytes.first_chunk().unwrap());
        let _ = parse_version(bytes.first_chunk().unwrap());
        let _ = parse_mtu([bytes[0], bytes[1]]);
        let _ = parse_number("cache_line", [bytes[0], bytes[1], bytes[2], bytes[3]], MAX_CACHE_LINE);
    }

    #[test]
    fn no_hexadecimal_bytes_panic(message in "[0-9a-fA-F:]{107}\0") {
        let bytes = message.as_bytes();
        let _ = Key::parse(bytes.first_chunk().unwrap());
        let _ = Address::parse(bytes.last_chunk().unwrap());
    }

    #[test]
    fn what_is_encoded_is_understood(
        out_reads: u16, qpn in 0..0x0100_0000_u32, psn in 0..0x0100_0000_u32, rkey: u32, va: u64,
        gid: [u8; 16],
    ) {
        let gid = Gid::new(gid);
        let key = Key { out_reads, qpn, psn, rkey, va, gid };
        prop_assert_eq!(Key::parse(&key.encode()), Ok(key));
        let address = Address { qpn, psn, gid };
        prop_assert_eq!(Address::parse(&address.encode()), Ok(address));
    }
}
