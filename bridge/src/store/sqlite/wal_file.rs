//! How the WAL reaches the system. SQLite writes each page of a commit in two calls; here they are
//! put together, and one call writes many, the last of them before the sync. Nobody looks for a page there before
//! that sync, and what a crash leaves of it SQLite tells by its checksums, as ever. Who carries the WAL into the file
//! reads it in large pieces.

#![expect(unsafe_code, reason = "SQLite's interface to files")]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;
use std::sync::OnceLock;

use rusqlite::ffi::{
    SQLITE_ERROR, SQLITE_IOERR, SQLITE_IOERR_SHORT_READ, SQLITE_OK, SQLITE_OPEN_WAL, sqlite3_file,
    sqlite3_int64, sqlite3_io_methods, sqlite3_vfs, sqlite3_vfs_find, sqlite3_vfs_register,
};

/// What waits is written when it is this large, though the commit goes on. SQLite's own files take less than
/// 128 KiB at once.
const PENDING_BYTES: usize = 120 << 10;

/// Who carries the WAL reads so much of it at once, and remembers so many of them: pages that are near each other in
/// the file are often near each other there. With these a fifth of the reads is left.
const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 16;

thread_local! {
    static CARRIED: RefCell<Carried> = const { RefCell::new(Carried::No) };
}

/// What a thread that carries the WAL has read of it.
enum Carried {
    No,
    /// SQLite syncs the WAL when it has chosen how far it carries, and then reads what it carries. What is read
    /// before may lie beside what is just being written.
    NotYet,
    /// By their places, the last used at the end. Nothing of what is carried is written meanwhile.
    Pieces(Vec<Piece>),
}

struct Piece {
    number: sqlite3_int64,
    bytes: Box<[u8]>,
}

/// For one checkpoint, which reads the WAL page by page and in any order: it is read in large pieces.
pub(super) fn carrying<T>(carry: impl FnOnce() -> T) -> T {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            CARRIED.set(Carried::No);
        }
    }
    CARRIED.set(Carried::NotYet);
    let _done = Done;
    carry()
}

const NAME: &CStr = c"forge-bridge";

/// The name of this way to open files, for `open_with_flags_and_vfs`. Files that are no WAL are opened as
/// always.
pub(super) fn vfs() -> rusqlite::Result<&'static CStr> {
    static REGISTERED: OnceLock<c_int> = OnceLock::new();
    match *REGISTERED.get_or_init(register) {
        SQLITE_OK => Ok(NAME),
        code => {
            let error = rusqlite::ffi::Error::new(code);
            Err(rusqlite::Error::SqliteFailure(error, None))
        }
    }
}

fn register() -> c_int {
    // SAFETY: with no name the default is found, which stays registered. Its description is copied, and with
    // it the functions and data that it needs; they do not look at who calls them.
    unsafe {
        let Some(system) = sqlite3_vfs_find(ptr::null()).as_ref() else {
            return SQLITE_ERROR;
        };
        let ours = sqlite3_vfs {
            szOsFile: system.szOsFile + HEAD as c_int,
            zName: NAME.as_ptr(),
            xOpen: Some(open),
            pNext: ptr::null_mut(),
            ..*system
        };
        sqlite3_vfs_register(Box::into_raw(Box::new(ours)), 0)
    }
}

/// An open WAL. The system's file follows it in the same piece of memory.
#[repr(C)]
struct WalFile {
    methods: *const sqlite3_io_methods,
    /// What is not yet written, and where it belongs.
    pending: Vec<u8>,
    at: sqlite3_int64,
}

const HEAD: usize = size_of::<WalFile>();
const _: () = assert!(offset_of!(WalFile, methods) == 0);

static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives `szOsFile` bytes, aligned for a pointer, and all that the system's `xOpen` asks
    // for; `WalFile` takes its head of them, the system's file the rest.
    unsafe {
        let Some(system_open) = sqlite3_vfs_find(ptr::null()).as_ref().and_then(|s| s.xOpen) else {
            return SQLITE_ERROR;
        };
        if flags & SQLITE_OPEN_WAL == 0 {
            return system_open(vfs, name, file, flags, out_flags);
        }
        // Until it is open there is nothing to close.
        (*file).pMethods = ptr::null();
        let opened = system_open(vfs, name, system(file), flags, out_flags);
        if opened == SQLITE_OK {
            file.cast::<WalFile>().write(WalFile {
                methods: &raw const METHODS,
                pending: Vec::new(),
                at: 0,
            });
        }
        opened
    }
}

/// SAFETY: `file` must have been given to `open`.
unsafe fn system(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: it lies in the memory that `open` was given.
    unsafe { file.byte_add(HEAD) }
}

/// Calls a function of the system's file; one that it does not have is an error of the disk.
macro_rules! system {
    ($file:ident . $method:ident ( $($argument:expr),* )) => {{
        // SAFETY: SQLite calls only with a file that `open` opened, from one thread at a time, and with
        // arguments that fit the function.
        unsafe {
            let file = system($file);
            match (*file).pMethods.as_ref().and_then(|methods| methods.$method) {
                Some(method) => method(file $(, $argument)*),
                None => SQLITE_IOERR,
            }
        }
    }};
}

/// Writes what waits; what cannot be written is forgotten, and the commit fails.
///
/// SAFETY: `file` must be open.
unsafe fn flush(file: *mut sqlite3_file) -> c_int {
    // SAFETY: it is ours, and nobody else uses it meanwhile.
    let wal = unsafe { &mut *file.cast::<WalFile>() };
    if wal.pending.is_empty() {
        return SQLITE_OK;
    }
    let (bytes, at) = (wal.pending.as_ptr().cast(), wal.at);
    // `pending` is bounded far below the numbers of an `int`.
    let written = system!(file.xWrite(bytes, wal.pending.len() as c_int, at));
    wal.pending.clear();
    written
}

/// Flushes, then calls the function of the system's file.
macro_rules! flushed {
    ($file:ident . $method:ident ( $($argument:expr),* )) => {
        // SAFETY: SQLite calls only with a file that `open` opened.
        match unsafe { flush($file) } {
            SQLITE_OK => system!($file.$method($($argument),*)),
            failed => failed,
        }
    };
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    bytes: *const c_void,
    count: c_int,
    at: sqlite3_int64,
) -> c_int {
    let Ok(length) = usize::try_from(count) else {
        return SQLITE_IOERR;
    };
    // SAFETY: the file is open, and nobody else uses it meanwhile; `bytes` are `count`.
    unsafe {
        let wal = file.cast::<WalFile>();
        let end = (*wal).at + (*wal).pending.len() as sqlite3_int64;
        if at != end || (*wal).pending.len() + length > PENDING_BYTES {
            let flushed = flush(file);
            if flushed != SQLITE_OK {
                return flushed;
            }
            (*wal).at = at;
        }
        let bytes = std::slice::from_raw_parts(bytes.cast::<u8>(), length);
        (*wal).pending.extend_from_slice(bytes);
    }
    SQLITE_OK
}

unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    to: *mut c_void,
    count: c_int,
    at: sqlite3_int64,
) -> c_int {
    let carried = CARRIED.with_borrow_mut(|carried| {
        let Carried::Pieces(pieces) = carried else {
            return None;
        };
        let count = usize::try_from(count).ok()?;
        // SAFETY: the file is open, and SQLite gives room for `count` bytes.
        unsafe { copy(file, pieces, to.cast(), count, at) }
    });
    match carried {
        Some(()) => SQLITE_OK,
        None => flushed!(file.xRead(to, count, at)),
    }
}

/// `None` when it cannot be had in large pieces: then it is read, or fails, as ever.
///
/// SAFETY: `file` must be open, and `to` have room for `count` bytes.
unsafe fn copy(
    file: *mut sqlite3_file,
    pieces: &mut Vec<Piece>,
    to: *mut u8,
    count: usize,
    at: sqlite3_int64,
) -> Option<()> {
    let size = PIECE_BYTES as sqlite3_int64;
    let mut done = 0;
    while done < count {
        let at = at + done as sqlite3_int64;
        let from = usize::try_from(at % size).ok()?;
        let number = at / size;
        let known = pieces.iter().position(|piece| piece.number == number);
        let piece = match known {
            Some(known) => pieces.remove(known),
            None => {
                let mut bytes = match pieces.len() < PIECES {
                    true => vec![0; PIECE_BYTES].into_boxed_slice(),
                    false => pieces.remove(0).bytes,
                };
                let room = bytes.as_mut_ptr().cast();
                match system!(file.xRead(room, PIECE_BYTES as c_int, number * size)) {
                    // At the end of the file it is less, and nobody asks for the rest.
                    SQLITE_OK | SQLITE_IOERR_SHORT_READ => Piece { number, bytes },
                    _ => return None,
                }
            }
        };
        let length = (count - done).min(PIECE_BYTES - from);
        // SAFETY: both have so many bytes from there.
        unsafe { ptr::copy_nonoverlapping(piece.bytes[from..].as_ptr(), to.add(done), length) };
        pieces.push(piece);
        done += length;
    }
    Some(())
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    flushed!(file.xTruncate(size))
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    let synced = flushed!(file.xSync(flags));
    CARRIED.with_borrow_mut(|carried| {
        if !matches!(carried, Carried::No) {
            *carried = Carried::Pieces(Vec::with_capacity(PIECES));
        }
    });
    synced
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, size: *mut sqlite3_int64) -> c_int {
    flushed!(file.xFileSize(size))
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: it was written by `open`, and SQLite does not use it any more.
    let flushed = unsafe { flush(file) };
    let closed = system!(file.xClose());
    // SAFETY: the same, and `file` itself holds nothing else that is to be given back.
    unsafe { file.cast::<WalFile>().drop_in_place() };
    if flushed == SQLITE_OK {
        closed
    } else {
        flushed
    }
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    system!(file.xLock(level))
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, level: c_int) -> c_int {
    system!(file.xUnlock(level))
}

unsafe extern "C" fn check_reserved_lock(file: *mut sqlite3_file, held: *mut c_int) -> c_int {
    system!(file.xCheckReservedLock(held))
}

unsafe extern "C" fn file_control(file: *mut sqlite3_file, op: c_int, of: *mut c_void) -> c_int {
    system!(file.xFileControl(op, of))
}

unsafe extern "C" fn sector_size(file: *mut sqlite3_file) -> c_int {
    system!(file.xSectorSize())
}

unsafe extern "C" fn device_characteristics(file: *mut sqlite3_file) -> c_int {
    system!(file.xDeviceCharacteristics())
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use rusqlite::{Connection, OpenFlags};

    use super::super::schema;
    use super::{carrying, vfs};

    fn open(file: &std::path::Path) -> Connection {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let writer = Connection::open_with_flags_and_vfs(file, flags, vfs().unwrap()).unwrap();
        writer
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = 10;
                 CREATE TABLE t (n INTEGER PRIMARY KEY, bytes BLOB);",
            )
            .unwrap();
        writer
    }

    /// Beside one who writes, who has the WAL begin anew many times; then the file alone is as it was written.
    #[test]
    fn what_is_carried_in_large_pieces_is_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("db");
        let writer = open(&file);
        let carrier = schema::open_checkpointer(&file).unwrap();
        let carry = |connection: &Connection| -> (i64, i64) {
            carrying(|| {
                connection
                    .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                        Ok((row.get(1)?, row.get(2)?))
                    })
                    .unwrap()
            })
        };
        let insert = "INSERT OR REPLACE INTO t
                      VALUES (abs(random()) % 300, randomblob(abs(random()) % 9000))";
        let writes = thread::spawn(move || {
            for _ in 0..2000 {
                writer.execute(insert, []).unwrap();
            }
            writer
        });
        while !writes.is_finished() {
            carry(&carrier);
        }
        let writer = writes.join().unwrap();
        let (in_wal, in_file) = carry(&carrier);
        assert_eq!(in_wal, in_file, "all of it");
        let alone = folder.path().join("alone");
        fs::copy(&file, &alone).unwrap();
        let all = |connection: &Connection| -> Vec<(i64, Vec<u8>)> {
            let mut rows = connection
                .prepare("SELECT n, bytes FROM t ORDER BY n")
                .unwrap();
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
            rows.unwrap().map(Result::unwrap).collect()
        };
        let alone = Connection::open(&alone).unwrap();
        assert_eq!(all(&alone), all(&writer));
        let sound: String = alone
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(sound, "ok");
    }

    /// Pages that do not fit the cache are written before the commit, and may be read back or written over.
    #[test]
    fn what_is_written_before_the_commit_is_read_back_and_may_be_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("db");
        let writer = open(&file);
        let fill = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 200)
                    INSERT INTO t SELECT NULL, randomblob(3000) FROM n";
        let size = |connection: &Connection| {
            let sql = "SELECT coalesce(sum(length(bytes)), 0) FROM t";
            connection.query_row(sql, [], |row| row.get(0)).unwrap()
        };
        let reader = Connection::open(&file).unwrap();
        for (round, end) in [(1, "COMMIT"), (1, "ROLLBACK"), (2, "COMMIT")] {
            writer.execute_batch("BEGIN").unwrap();
            writer.execute_batch(fill).unwrap();
            writer
                .execute_batch("UPDATE t SET bytes = randomblob(3000)")
                .unwrap();
            let kept: i64 = size(&reader);
            assert_eq!(size(&writer) - kept, 600_000);
            writer.execute_batch(end).unwrap();
            assert_eq!(size(&reader), round * 600_000);
            let sound: String = reader
                .query_row("PRAGMA integrity_check", [], |row| row.get(0))
                .unwrap();
            assert_eq!(sound, "ok");
        }
        drop((writer, reader));
        let again = Connection::open(&file).unwrap();
        assert_eq!(size(&again), 1_200_000);
    }
}
