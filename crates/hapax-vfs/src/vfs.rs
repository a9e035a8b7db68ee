//! The VFS itself: the platform's, but for the files that it opens.
#![allow(non_snake_case, reason = "the methods have SQLite's names")]

use crate::{file, forward::forward};
use rusqlite::ffi::{self, sqlite3_file, sqlite3_filename, sqlite3_int64, sqlite3_syscall_ptr, sqlite3_vfs};
use std::{
    ffi::{c_char, c_int, c_void},
    mem::MaybeUninit,
    ptr,
};

const NAME: &std::ffi::CStr = c"hapax-counting";

/// What `dlsym` finds.
type Symbol = Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void, *const c_char)>;

/// Makes a VFS that hands on to the default one the default in its stead. Answers SQLite's code.
pub(crate) fn register() -> c_int {
    // SAFETY: null asks for the default. SQLite initializes itself here if nobody has done so.
    let platform = unsafe { ffi::sqlite3_vfs_find(ptr::null()) };
    if platform.is_null() {
        return ffi::SQLITE_NOTFOUND;
    }
    // SQLite keeps the pointer for as long as the process lives.
    let ours = Box::leak(Box::new(over(platform)));
    // SAFETY: a complete table that nobody frees or moves.
    unsafe { ffi::sqlite3_vfs_register(ours, 1) }
}

fn over(platform: *mut sqlite3_vfs) -> sqlite3_vfs {
    // SAFETY: numbers, pointers, and functions that may be null.
    let mut ours: sqlite3_vfs = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: a registered VFS is whole, and stays.
    unsafe {
        offer(&mut ours, platform);
        ours.szOsFile = file::size((*platform).szOsFile);
        ours.mxPathname = (*platform).mxPathname;
    }
    ours.zName = NAME.as_ptr();
    ours.pAppData = platform.cast();
    ours.xOpen = ours.xOpen.and(Some(counted_open));
    ours
}

/// The platform's VFS behind ours.
unsafe fn real(ours: *mut sqlite3_vfs) -> *mut sqlite3_vfs {
    // SAFETY: ours was made by `over`, and nobody changes it.
    unsafe { (*ours).pAppData.cast() }
}

/// A VFS is its own table.
unsafe fn table(real: *mut sqlite3_vfs) -> *const sqlite3_vfs {
    real
}

/// Opens the platform's file behind ours.
unsafe extern "C" fn counted_open(
    ours: *mut sqlite3_vfs,
    name: sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite has allocated the bytes that `szOsFile` asks for. The name goes on as it came: SQLite keeps
    // parameters of a URI behind it.
    unsafe {
        let behind = file::real(file);
        (*behind).pMethods = ptr::null();
        let code = xOpen(ours, name, behind, flags, flags_out);
        file::wrap(file);
        code
    }
}

forward! {
    sqlite3_vfs, sqlite3_vfs, real = real, table = table;
    since 1 {
        fn xOpen(name: sqlite3_filename, file: *mut sqlite3_file, flags: c_int, flags_out: *mut c_int) -> c_int;
        fn xDelete(name: *const c_char, sync_folder: c_int) -> c_int;
        fn xAccess(name: *const c_char, flags: c_int, answer: *mut c_int) -> c_int;
        fn xFullPathname(name: *const c_char, bytes: c_int, full: *mut c_char) -> c_int;
        fn xDlOpen(name: *const c_char) -> *mut c_void;
        fn xDlError(bytes: c_int, message: *mut c_char);
        fn xDlSym(library: *mut c_void, name: *const c_char) -> Symbol;
        fn xDlClose(library: *mut c_void);
        fn xRandomness(bytes: c_int, into: *mut c_char) -> c_int;
        fn xSleep(microseconds: c_int) -> c_int;
        fn xCurrentTime(julian_day: *mut f64) -> c_int;
        fn xGetLastError(bytes: c_int, message: *mut c_char) -> c_int;
    }
    since 2 {
        fn xCurrentTimeInt64(julian_ms: *mut sqlite3_int64) -> c_int;
    }
    since 3 {
        fn xSetSystemCall(name: *const c_char, call: sqlite3_syscall_ptr) -> c_int;
        fn xGetSystemCall(name: *const c_char) -> sqlite3_syscall_ptr;
        fn xNextSystemCall(name: *const c_char) -> *const c_char;
    }
}
