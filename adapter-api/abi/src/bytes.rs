//! Construction and consumption of the table's two byte types, for both sides of the boundary.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;

use crate::{FBytes, FSlice};

/// Inconsistent bytes from the other side: a length beyond the capacity, or a null pointer or no `free`
/// although the capacity is not 0. They are leaked, never dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed bytes from the other side of the boundary")
    }
}

impl std::error::Error for Malformed {}

impl FBytes {
    /// Empty bytes without an allocation.
    pub const fn empty() -> Self {
        Self {
            ptr: ptr::null_mut(),
            len: 0,
            cap: 0,
            free: None,
        }
    }

    /// Transfers a vector; `free` returns its allocation to this side.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        Self {
            ptr: bytes.as_mut_ptr(),
            len: bytes.len(),
            cap: bytes.capacity(),
            free: Some(free_vec),
        }
    }

    /// True if the fields are consistent with each other. Reads no memory behind `ptr`.
    pub fn is_well_formed(&self) -> bool {
        if self.cap == 0 {
            return self.len == 0;
        }
        self.len <= self.cap
            && isize::try_from(self.cap).is_ok()
            && !self.ptr.is_null()
            && self.free.is_some()
    }

    /// Copies the bytes and frees the original. Check `len` first where a limit applies.
    ///
    /// # Safety
    ///
    /// If the fields are well formed, `ptr` points to `len` readable bytes that no other code frees.
    pub unsafe fn into_vec(self) -> Result<Vec<u8>, Malformed> {
        if !self.is_well_formed() {
            return Err(Malformed);
        }
        let copy = if self.len == 0 {
            Vec::new()
        } else {
            // SAFETY: the fields are well formed and the caller guarantees the memory.
            unsafe { std::slice::from_raw_parts(self.ptr, self.len) }.to_vec()
        };
        // SAFETY: as above, and no reference to the original is left.
        unsafe { self.release() };
        Ok(copy)
    }

    /// Frees the bytes without reading them. Malformed bytes are leaked.
    ///
    /// # Safety
    ///
    /// As for [`FBytes::into_vec`].
    pub unsafe fn release(self) {
        if !self.is_well_formed() {
            return;
        }
        if let Some(free) = self.free {
            // SAFETY: the allocating side's own function with its own values, called once.
            unsafe { free(self.ptr, self.len, self.cap) };
        }
    }
}

impl FSlice {
    /// Borrows bytes for one call.
    pub const fn of(bytes: &[u8]) -> Self {
        Self {
            ptr: bytes.as_ptr(),
            len: bytes.len(),
        }
    }

    /// The borrowed bytes; empty when the pointer is null.
    ///
    /// # Safety
    ///
    /// A non-null pointer points to `len` readable bytes that stay unchanged for `'a`, and `'a` ends with
    /// the call that the slice was passed to.
    pub unsafe fn as_bytes<'a>(self) -> &'a [u8] {
        if self.ptr.is_null() || self.len == 0 || isize::try_from(self.len).is_err() {
            return &[];
        }
        // SAFETY: not null, a valid length, and the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

unsafe extern "C" fn free_vec(ptr: *mut u8, len: usize, cap: usize) {
    // SAFETY: only `from_vec` hands this function out, with the parts of a vector.
    drop(unsafe { Vec::from_raw_parts(ptr, len, cap) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_survives_the_round_trip() {
        for bytes in [Vec::new(), vec![1, 2, 3], Vec::with_capacity(64)] {
            let expected = bytes.clone();
            let handed = FBytes::from_vec(bytes);
            // SAFETY: created on the line above, consumed once.
            assert_eq!(unsafe { handed.into_vec() }, Ok(expected));
        }
        // SAFETY: the bytes are empty.
        assert_eq!(unsafe { FBytes::empty().into_vec() }, Ok(Vec::new()));
    }

    #[test]
    fn contradicting_fields_are_refused_untouched() {
        let ptr = ptr::NonNull::<u8>::dangling().as_ptr();
        let table = [
            ("longer than its capacity", ptr, 9, 8, Some(free_vec as _)),
            ("no free", ptr, 1, 1, None),
            ("null", ptr::null_mut(), 1, 1, Some(free_vec as _)),
            ("length of nothing", ptr, 1, 0, Some(free_vec as _)),
            ("impossible size", ptr, 1, usize::MAX, Some(free_vec as _)),
        ];
        for (name, ptr, len, cap, free) in table {
            let bytes = FBytes {
                ptr,
                len,
                cap,
                free,
            };
            // SAFETY: rejected before any memory is read.
            assert_eq!(unsafe { bytes.into_vec() }, Err(Malformed), "{name}");
        }
    }

    #[test]
    fn a_null_slice_is_empty() {
        let slice = FSlice {
            ptr: ptr::null(),
            len: 7,
        };
        // SAFETY: a null pointer is never read.
        assert!(unsafe { slice.as_bytes() }.is_empty());
    }
}
