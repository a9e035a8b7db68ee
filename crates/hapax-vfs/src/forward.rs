//! Writes the functions that hand a call on to the platform, and the table of those that the platform has.
//!
//! Invariant: SQLite is offered a method exactly when the platform's table holds it, in a version that knows it. So a
//! forwarder that is called always finds the method that it hands on to.

/// For each signature: a function that calls the same method of the `real` object with the same arguments.
///
/// `table` tells where an object keeps its methods. `offer` fills our table; what it leaves out stays null.
macro_rules! forward {
    (
        $object:ty, $methods:ty, real = $real:path, table = $table:path;
        $(since $version:literal {
            $(fn $name:ident($($arg:ident: $type:ty),*) $(-> $answer:ty)?;)*
        })*
    ) => {
        $($(
            unsafe extern "C" fn $name(this: *mut $object $(, $arg: $type)*) $(-> $answer)? {
                // SAFETY: SQLite calls a method with an object that this crate made and that is still alive; its real
                // object is alive as long. The arguments are SQLite's own, and the platform's to check.
                unsafe {
                    let real = $real(this);
                    let method = (*$table(real)).$name.expect("only what the platform has is offered");
                    method(real $(, $arg)*)
                }
            }
        )*)*

        /// Offers what `real` has, and no more.
        ///
        /// # Safety
        ///
        /// `real` is a table of the platform, as long as its version demands.
        unsafe fn offer(ours: &mut $methods, real: *const $methods) {
            // SAFETY: every version has this field.
            let version = unsafe { (*real).iVersion };
            ours.iVersion = version.min([$($version),*].into_iter().fold(0, i32::max));
            $(if version >= $version {
                // SAFETY: a table of this version is long enough to hold these fields.
                unsafe {
                    $(ours.$name = (*real).$name.and(Some($name));)*
                }
            })*
        }
    };
}

pub(crate) use forward;
