//! Takes the ELF kernel out of the compressed one that distributions ship.
//!
//! QEMU starts an ELF file with a PVH note at once; the compressed one would unpack itself first,
//! which takes an emulated machine some seconds (Documentation/arch/x86/boot.rst).

use std::io::Read as _;

use anyhow::{Context as _, Result, bail, ensure};

/// Sectors of the set-up code, one byte.
const SETUP_SECTS: usize = 0x1f1;
const MAGIC: std::ops::Range<usize> = 0x202..0x206;
const VERSION: std::ops::Range<usize> = 0x206..0x208;
const PAYLOAD_OFFSET: std::ops::Range<usize> = 0x248..0x24c;
const PAYLOAD_LENGTH: std::ops::Range<usize> = 0x24c..0x250;
/// The first version of the header that tells where the payload is.
const MIN_VERSION: u16 = 0x208;
/// Behind the payload stands its length when unpacked, four bytes that no decoder expects.
const LENGTH_BYTES: usize = 4;
/// No kernel is larger.
const MAX_VMLINUX: u64 = 512 << 20;

/// The vmlinux inside a bzImage.
pub(crate) fn extract(image: &[u8]) -> Result<Vec<u8>> {
    let field = |range: std::ops::Range<usize>| image.get(range).context("too short for a kernel");
    ensure!(field(MAGIC)? == b"HdrS", "no boot header");
    let version = field(VERSION)?;
    let version = u16::from_le_bytes([version[0], version[1]]);
    ensure!(
        version >= MIN_VERSION,
        "boot header {version:#x} does not tell where the payload is"
    );
    let word = |range| -> Result<usize> {
        let bytes: [u8; 4] = field(range)?.try_into()?;
        Ok(u32::from_le_bytes(bytes) as usize)
    };
    // Zero means four, of old.
    let sectors = match image[SETUP_SECTS] {
        0 => 4,
        n => usize::from(n),
    };
    let start = (sectors + 1) * 512 + word(PAYLOAD_OFFSET)?;
    let length = word(PAYLOAD_LENGTH)?.checked_sub(LENGTH_BYTES);
    let payload = length
        .and_then(|length| image.get(start..start.checked_add(length)?))
        .context("the payload lies outside the file")?;
    let vmlinux = decompress(payload)?;
    ensure!(
        vmlinux.starts_with(b"\x7fELF"),
        "the payload is no ELF file"
    );
    Ok(vmlinux)
}

/// Unpacks xz or zstd; anything else comes back as it is an error.
pub(crate) fn decompress(packed: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = match packed {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => liblzma::read::XzDecoder::new(packed)
            .take(MAX_VMLINUX)
            .read_to_end(&mut bytes),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => zstd::Decoder::new(packed)?
            .single_frame()
            .take(MAX_VMLINUX)
            .read_to_end(&mut bytes),
        _ => bail!(
            "compressed with neither xz nor zstd: begins with {}",
            crate::cache::hex(&packed[..packed.len().min(6)])
        ),
    };
    read.context("cannot decompress")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A bzImage with the payload behind two sectors of set-up code.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 3 * 512];
        image[SETUP_SECTS] = 1;
        image[MAGIC].copy_from_slice(b"HdrS");
        image[VERSION].copy_from_slice(&0x20fu16.to_le_bytes());
        image[PAYLOAD_OFFSET].copy_from_slice(&512u32.to_le_bytes());
        let length = u32::try_from(payload.len() + LENGTH_BYTES).unwrap();
        image[PAYLOAD_LENGTH].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(&[0; LENGTH_BYTES]);
        image.extend_from_slice(b"what follows");
        image
    }

    #[test]
    fn both_compressions() {
        let elf = b"\x7fELF and the rest of it";
        let packed = zstd::encode_all(&elf[..], 3).unwrap();
        assert_eq!(extract(&image(&packed)).unwrap(), elf);
        let mut packed = Vec::new();
        liblzma::read::XzEncoder::new(&elf[..], 6)
            .read_to_end(&mut packed)
            .unwrap();
        assert_eq!(extract(&image(&packed)).unwrap(), elf);
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        assert!(extract(b"").is_err());
        assert!(extract(&[0; 4096]).is_err());
        let error = extract(&image(b"\x1f\x8b gzip")).unwrap_err().to_string();
        assert!(error.contains("1f8b"), "{error}");
        let whole = zstd::encode_all(&b"no ELF"[..], 3).unwrap();
        assert!(extract(&image(&whole)).is_err());
    }

    proptest! {
        #[test]
        fn damage_does_no_harm(at in 0usize..1600, byte: u8) {
            let mut damaged = image(&zstd::encode_all(&b"\x7fELF"[..], 3).unwrap());
            let at = at.min(damaged.len() - 1);
            damaged[at] = byte;
            let _ = extract(&damaged);
        }
    }
}
