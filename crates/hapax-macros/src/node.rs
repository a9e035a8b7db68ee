//! `#[node]`: the function as it is, and beside it a check that its future is `Send`.
//!
//! Invariant: the function's own tokens come out unchanged, also where they are refused, so that an editor keeps
//! understanding them.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{Error, FnArg, GenericParam, Ident, ItemFn, Result, Signature, spanned::Spanned};

/// The function and its check, or the function and what is wrong with it.
pub(crate) fn check(arguments: &TokenStream, item: &TokenStream) -> TokenStream {
    let added = assertion(arguments, item).unwrap_or_else(Error::into_compile_error);
    quote! { #item #added }
}

fn assertion(arguments: &TokenStream, item: &TokenStream) -> Result<TokenStream> {
    if !arguments.is_empty() {
        return Err(Error::new(arguments.span(), "`#[node]` takes no arguments; remove them"));
    }
    let function: ItemFn = syn::parse2(item.clone())
        .map_err(|_| Error::new(item.span(), "`#[node]` goes on an `async fn`, since a node is one"))?;
    let signature = &function.sig;
    refuse(signature)?;
    let parameters: Vec<Ident> = (0..signature.inputs.len()).map(|at| format_ident!("input{at}")).collect();
    let types = signature.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(typed) => Some(&typed.ty),
        FnArg::Receiver(_) => None,
    });
    let (name, generics) = (&signature.ident, &signature.generics);
    let (bounds, _, clauses) = generics.split_for_impl();
    let explicit = explicit_generics(signature);
    let call = quote_spanned!(at(name.span())=> must_be_send(#name #explicit(#(#parameters),*)));
    Ok(quote! {
        const _: () = {
            #[allow(warnings, clippy::all, clippy::pedantic)]
            fn check #bounds (#(#parameters: #types),*) #clauses {
                fn must_be_send(_: impl ::core::future::Future + ::core::marker::Send) {}
                #call
            }
        };
    })
}

/// Points there, but resolves names as the macro's own.
fn at(span: Span) -> Span {
    Span::call_site().located_at(span)
}

fn refuse(signature: &Signature) -> Result<()> {
    if signature.asyncness.is_none() {
        let why = "a node is an `async fn`; write `async fn`, or wrap the function in `blocking` where it is \
                   given to the graph and remove `#[node]`";
        return Err(Error::new(signature.fn_token.span, why));
    }
    if let Some(receiver) = signature.receiver() {
        let why = "a node is a free function; take what `self` holds from `ctx.app()`";
        return Err(Error::new(receiver.span(), why));
    }
    if !(1..=2).contains(&signature.inputs.len()) {
        let why = "a node takes `(ctx)` or `(ctx, input)`; put several inputs into one struct or tuple";
        return Err(Error::new(signature.paren_token.span.join(), why));
    }
    Ok(())
}

/// Types that only the body uses can't be inferred from the arguments, so all of them are passed on.
fn explicit_generics(signature: &Signature) -> Option<TokenStream> {
    let names: Vec<_> = signature
        .generics
        .params
        .iter()
        .filter_map(|parameter| match parameter {
            GenericParam::Type(parameter) => Some(&parameter.ident),
            GenericParam::Const(parameter) => Some(&parameter.ident),
            GenericParam::Lifetime(_) => None,
        })
        .collect();
    (!names.is_empty()).then(|| quote!(::<#(#names),*>))
}
