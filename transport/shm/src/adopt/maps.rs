//! What is mapped where in this process, from `/proc/self/maps`.

use std::fmt;
use std::ops::Range;

/// One mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// `rwxp` or `rwxs`, with dashes.
    pub permissions: String,
    /// Where it begins in its file, in bytes.
    pub offset: u64,
    /// Device of its file, major and minor; 0, 0 if there is none.
    pub device: (u32, u32),
    /// Inode of its file; 0 if there is none.
    pub inode: u64,
    /// Path of its file, or a name like `[heap]`, or empty.
    pub name: String,
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = (self.range.start, self.range.end);
        write!(f, "{start:#x}-{end:#x} {} {}", self.permissions, self.name)
    }
}

impl Mapping {
    /// A line of `/proc/self/maps`.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ').filter(|field| !field.is_empty());
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?.to_owned();
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        Some(Self {
            range: u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?,
            permissions,
            offset,
            device: (
                u32::from_str_radix(major, 16).ok()?,
                u32::from_str_radix(minor, 16).ok()?,
            ),
            inode: fields.next()?.parse().ok()?,
            name: fields.collect::<Vec<_>>().join(" "),
        })
    }

    /// Private memory without a file that is read and written and not executed.
    pub(super) fn is_ordinary(&self) -> bool {
        self.permissions == "rw-p" && self.inode == 0 && self.device == (0, 0)
    }
}

/// All mappings of a text like `/proc/self/maps`, in rising order.
pub(super) fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(Mapping::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let text = "5596cca58000-5596cca79000 rw-p 00000000 00:00 0                  [heap]\n\
            7f161e674000-7f161e675000 r--s 00002000 fe:01 325745   /usr/lib/a b (deleted)\n\
            7f161e675000-7f161e677000 rw-p 00000000 00:00 0 \n";
        let [heap, file, plain] = &parse(text)[..] else {
            panic!("{:?}", parse(text));
        };
        assert!(heap.is_ordinary() && plain.is_ordinary() && !file.is_ordinary());
        assert_eq!(
            heap.to_string(),
            "0x5596cca58000-0x5596cca79000 rw-p [heap]"
        );
        assert_eq!(
            (file.offset, file.device, file.inode),
            (0x2000, (0xfe, 1), 325_745)
        );
        assert_eq!(file.name, "/usr/lib/a b (deleted)");
    }
}
