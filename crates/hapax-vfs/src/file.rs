//! An open file: the platform's own, behind a table of methods that counts syncs.
#![allow(non_snake_case, reason = "the methods have SQLite's names")]

use crate::{SYNCS, forward::forward};
use rusqlite::ffi::{sqlite3_file, sqlite3_int64, sqlite3_io_methods};
use std::{
    ffi::{c_int, c_void},
    mem::{MaybeUninit, size_of},
    ptr,
    sync::atomic::Ordering,
};

/// What SQLite holds of an open file. The platform's file lies right behind it, in the same allocation.
///
/// The table is the file's own: which methods there are differs from file to file, since the platform picks them by the
/// file system.
#[repr(C)]
struct CountedFile {
    base: sqlite3_file,
    methods: sqlite3_io_methods,
}

/// The bytes of a file whose real one has `real` bytes.
pub(crate) fn size(real: c_int) -> c_int {
    size_of::<CountedFile>() as c_int + real
}

/// The platform's file behind ours.
///
/// # Safety
///
/// `file` points to [`size`] bytes, as SQLite allocates them for a file of this VFS.
pub(crate) unsafe fn real(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: the caller's promise; the offset is a multiple of the alignment of both.
    unsafe { file.cast::<CountedFile>().add(1).cast() }
}

/// Makes ours a file that hands on to the real one, which the platform has just opened or refused.
///
/// # Safety
///
/// As for [`real`], and the real file's table is null or the platform's.
pub(crate) unsafe fn wrap(file: *mut sqlite3_file) {
    // SAFETY: the caller's promise. The table lies in the file, which SQLite doesn't move while it is open.
    unsafe {
        let theirs = (*real(file)).pMethods;
        if theirs.is_null() {
            // SQLite closes a file that failed to open only if it has methods.
            (*file).pMethods = ptr::null();
            return;
        }
        let mut methods = no_methods();
        offer(&mut methods, theirs);
        methods.xSync = methods.xSync.and(Some(counted_sync));
        let counted = file.cast::<CountedFile>();
        (*counted).methods = methods;
        (*counted).base.pMethods = &raw const (*counted).methods;
    }
}

fn no_methods() -> sqlite3_io_methods {
    // SAFETY: a number and functions that may be null.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The one that all of this is about.
unsafe extern "C" fn counted_sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    SYNCS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: called as SQLite called us.
    unsafe { xSync(file, flags) }
}

/// Where a real file keeps its methods.
unsafe fn table(real: *mut sqlite3_file) -> *const sqlite3_io_methods {
    // SAFETY: the real file is open.
    unsafe { (*real).pMethods }
}

forward! {
    sqlite3_file, sqlite3_io_methods, real = real, table = table;
    since 1 {
        fn xClose() -> c_int;
        fn xRead(into: *mut c_void, bytes: c_int, at: sqlite3_int64) -> c_int;
        fn xWrite(from: *const c_void, bytes: c_int, at: sqlite3_int64) -> c_int;
        fn xTruncate(size: sqlite3_int64) -> c_int;
        fn xSync(flags: c_int) -> c_int;
        fn xFileSize(size: *mut sqlite3_int64) -> c_int;
        fn xLock(level: c_int) -> c_int;
        fn xUnlock(level: c_int) -> c_int;
        fn xCheckReservedLock(is_locked: *mut c_int) -> c_int;
        fn xFileControl(operation: c_int, argument: *mut c_void) -> c_int;
        fn xSectorSize() -> c_int;
        fn xDeviceCharacteristics() -> c_int;
    }
    since 2 {
        fn xShmMap(page: c_int, bytes: c_int, extend: c_int, memory: *mut *mut c_void) -> c_int;
        fn xShmLock(offset: c_int, count: c_int, flags: c_int) -> c_int;
        fn xShmBarrier();
        fn xShmUnmap(delete: c_int) -> c_int;
    }
    since 3 {
        fn xFetch(at: sqlite3_int64, bytes: c_int, memory: *mut *mut c_void) -> c_int;
        fn xUnfetch(at: sqlite3_int64, memory: *mut c_void) -> c_int;
    }
}
