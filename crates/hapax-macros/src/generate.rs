//! The code that `#[derive(State)]` writes: the delta with its builders, and what both types implement.
//!
//! Invariant: a delta's field is `None` until it is written, and `Some` of the field's own type afterwards
//! (of a list of them under `reduce = path`, because only the user's function knows how two of them combine).

use crate::{
    fields::{Field, Reducer},
    parse::Input,
};
use proc_macro2::TokenStream;
use quote::{ToTokens as _, format_ident, quote, quote_spanned};
use syn::{Ident, Path};

/// Everything for one state.
pub(crate) fn state(input: &Input) -> TokenStream {
    let delta = format_ident!("{}Delta", input.ident, span = input.ident.span());
    let parts = [
        definition(input, &delta),
        builders(input, &delta),
        state_impl(input, &delta),
        delta_impl(input, &delta),
        serialize(input, &delta),
        deserialize(input, &delta),
        debug(input, &delta),
    ];
    parts.into_iter().collect()
}

/// The type that a delta keeps of a field.
fn kept(field: &Field) -> TokenStream {
    let ty = &field.ty;
    match field.reducer {
        Reducer::Custom { .. } => quote!(::std::vec::Vec<#ty>),
        _ => quote!(#ty),
    }
}

fn definition(input: &Input, delta: &Ident) -> TokenStream {
    let (vis, doc) = (&input.vis, format!("The fields of [`{}`] that a node wrote.", input.ident));
    let fields = input.fields.iter().map(|field| {
        let (ident, kept) = (&field.ident, kept(field));
        quote!(#ident: ::core::option::Option<#kept>)
    });
    quote! {
        #[doc = #doc]
        #[derive(::core::clone::Clone, ::core::default::Default)]
        #[must_use = "a delta changes nothing until a node returns it"]
        #vis struct #delta { #(#fields),* }
    }
}

fn builders(input: &Input, delta: &Ident) -> TokenStream {
    let builders = input.fields.iter().map(|field| builder(input, field));
    quote! {
        #[automatically_derived]
        #[allow(dead_code, deprecated, private_bounds, private_interfaces)]
        #[allow(clippy::should_implement_trait, clippy::wrong_self_convention)]
        impl #delta { #(#builders)* }
    }
}

fn builder(input: &Input, field: &Field) -> TokenStream {
    let Field { ident, docs, .. } = field;
    let (vis, doc) = (&input.vis, doc(field));
    let arguments = arguments(&input.hapax, field);
    let body = body(&input.hapax, field);
    let break_line = (!docs.is_empty()).then(|| quote!(#[doc = ""]));
    quote! {
        #[doc = #doc]
        #break_line
        #(#docs)*
        #vis fn #ident(mut self, #arguments) -> Self {
            #body
            self
        }
    }
}

fn doc(field: &Field) -> String {
    let name = &field.name;
    match field.reducer {
        Reducer::Last => format!("Replaces `{name}`."),
        Reducer::Append => format!("Appends an element to `{name}`; each call appends another."),
        Reducer::Extend => format!("Appends elements to `{name}`."),
        Reducer::Sum => format!("Adds to `{name}`."),
        Reducer::Min => format!("Lowers `{name}` to this, if it is higher."),
        Reducer::Max => format!("Raises `{name}` to this, if it is lower."),
        Reducer::Union => format!("Adds elements to the set `{name}`."),
        Reducer::Merge => format!("Sets an entry of `{name}`; each call sets another."),
        Reducer::Crdt => format!(
            "Merges into `{name}`. Several edits are chained in one call, `state.{name}.edit().edit()`: two calls with \
             edits of the same state are edits side by side."
        ),
        Reducer::Custom { .. } => format!("Hands a value to the reducer of `{name}`, once for each call."),
    }
}

/// The element type of a collection.
fn item(field: &Field) -> TokenStream {
    let ty = &field.ty;
    quote_spanned!(field.span()=> <#ty as ::core::iter::IntoIterator>::Item)
}

fn arguments(hapax: &Path, field: &Field) -> TokenStream {
    let (span, ty) = (field.span(), &field.ty);
    let item = item(field);
    let into = |ty: TokenStream| quote_spanned!(span=> impl ::core::convert::Into<#ty>);
    let value = match field.reducer {
        Reducer::Extend | Reducer::Union => {
            let element = into(item);
            return quote_spanned!(span=> values: impl ::core::iter::IntoIterator<Item = #element>);
        }
        Reducer::Merge => {
            let pair = quote_spanned!(span=> <#item as #hapax::state::reduce::Pair>);
            let [key, value] = ["Key", "Value"].map(|half| Ident::new(half, span));
            let (key, value) = (into(quote!(#pair::#key)), into(quote!(#pair::#value)));
            return quote_spanned!(span=> key: #key, value: #value);
        }
        Reducer::Append => into(item),
        Reducer::Min | Reducer::Max => into(field.optional().unwrap_or(ty).to_token_stream()),
        Reducer::Last | Reducer::Sum | Reducer::Crdt | Reducer::Custom { .. } => into(quote!(#ty)),
    };
    quote_spanned!(span=> value: #value)
}

fn body(hapax: &Path, field: &Field) -> TokenStream {
    let (ident, item) = (&field.ident, item(field));
    let extend = |items: TokenStream| {
        quote_spanned! {field.span()=>
            let slot = self.#ident.get_or_insert_with(::core::default::Default::default);
            ::core::iter::Extend::<#item>::extend(slot, #items);
        }
    };
    let value = quote!(::core::convert::Into::into(value));
    match &field.reducer {
        Reducer::Append => extend(quote!(::core::iter::once(#value))),
        Reducer::Extend | Reducer::Union => extend(quote! {
            ::core::iter::IntoIterator::into_iter(values).map(::core::convert::Into::into)
        }),
        Reducer::Merge => extend(quote!(::core::iter::once((::core::convert::Into::into(key), #value)))),
        Reducer::Custom { .. } => {
            quote!(self.#ident.get_or_insert_with(::std::vec::Vec::new).push(#value);)
        }
        Reducer::Min | Reducer::Max if field.optional().is_some() => {
            fold(hapax, field, &quote!(::core::option::Option::Some(#value)))
        }
        _ => fold(hapax, field, &value),
    }
}

fn fold(hapax: &Path, field: &Field, value: &TokenStream) -> TokenStream {
    let (ident, reduce) = (&field.ident, reduce(hapax, field));
    quote_spanned!(field.span()=> #hapax::__private::fold(&mut self.#ident, #value, #reduce);)
}

/// The function that folds a written value into the field.
fn reduce(hapax: &Path, field: &Field) -> TokenStream {
    let optional = field.optional().is_some();
    let name = match &field.reducer {
        Reducer::Last => "last",
        Reducer::Append | Reducer::Extend | Reducer::Union | Reducer::Merge => "extend",
        Reducer::Sum => "sum",
        Reducer::Min if optional => "min_some",
        Reducer::Min => "min",
        Reducer::Max if optional => "max_some",
        Reducer::Max => "max",
        Reducer::Crdt => "crdt",
        Reducer::Custom { path, .. } => return quote!(#path),
    };
    let name = Ident::new(name, field.span());
    quote_spanned!(field.span()=> #hapax::state::reduce::#name)
}

fn state_impl(input: &Input, delta: &Ident) -> TokenStream {
    let Input { ident, hapax, .. } = input;
    let folds = input.fields.iter().map(|field| apply(hapax, field));
    let fields = input.fields.iter().map(|field| describe(hapax, field));
    let restore = restore(input);
    let version = input.version.map(|version| quote!(const VERSION: u32 = #version;));
    let upgrade = input.upgrade.as_ref().map(|path| {
        quote! {
            fn upgrade(
                old: #hapax::state::OldState,
            ) -> ::core::result::Result<Self, ::std::string::String> {
                #path(old).map_err(|error| ::std::string::ToString::to_string(&error))
            }
        }
    });
    quote! {
        #[automatically_derived]
        #[allow(deprecated, unused_variables)]
        impl #hapax::state::State for #ident {
            type Delta = #delta;
            #version
            fn apply(&mut self, delta: #delta) {
                #(#folds)*
            }
            #restore
            fn fields() -> &'static [#hapax::state::Field] {
                const { &[#(#fields),*] }
            }
            #upgrade
        }
    }
}

/// Only a reducer of the user's can leave a trace of a writer that lost; without one the trait's own will do.
fn restore(input: &Input) -> Option<TokenStream> {
    let custom = |field: &&Field| matches!(field.reducer, Reducer::Custom { ordered: false, .. });
    let arms: Vec<_> = input
        .fields
        .iter()
        .filter(custom)
        .map(|Field { ident, name, .. }| {
            quote!(#name => self.#ident = ::core::clone::Clone::clone(&before.#ident),)
        })
        .collect();
    (!arms.is_empty()).then(|| {
        quote! {
            fn restore(&mut self, before: &Self, field: &str) {
                match field {
                    #(#arms)*
                    _ => {}
                }
            }
        }
    })
}

fn apply(hapax: &Path, field: &Field) -> TokenStream {
    let (ident, reduce) = (&field.ident, reduce(hapax, field));
    match field.reducer {
        Reducer::Custom { .. } => quote! {
            for value in delta.#ident.into_iter().flatten() {
                #reduce(&mut self.#ident, value);
            }
        },
        _ => quote_spanned! {field.span()=>
            if let ::core::option::Option::Some(value) = delta.#ident {
                #reduce(&mut self.#ident, value);
            }
        },
    }
}

fn describe(hapax: &Path, field: &Field) -> TokenStream {
    let Field { name, json, secret, .. } = field;
    let reducer = match field.reducer {
        Reducer::Last => quote!(Last),
        Reducer::Append => quote!(Append),
        Reducer::Extend => quote!(Extend),
        Reducer::Sum => quote!(Sum),
        Reducer::Min => quote!(Min),
        Reducer::Max => quote!(Max),
        Reducer::Union => quote!(Union),
        Reducer::Merge => quote!(Merge),
        Reducer::Crdt => quote!(Crdt),
        Reducer::Custom { ordered: false, .. } => quote!(Custom),
        Reducer::Custom { ordered: true, .. } => quote!(CustomOrdered),
    };
    quote! {
        #hapax::state::Field {
            name: #name,
            json: #json,
            reducer: #hapax::state::Reducer::#reducer,
            secret: #secret,
        }
    }
}

fn delta_impl(input: &Input, delta: &Ident) -> TokenStream {
    let Input { ident, hapax, .. } = input;
    let claims = input.fields.iter().map(claim);
    quote! {
        #[automatically_derived]
        #[allow(deprecated, unused_variables)]
        impl #hapax::state::Delta for #delta {
            type State = #ident;
            fn claims(
                &self,
                claims: &mut #hapax::state::Claims,
            ) -> ::core::result::Result<(), #hapax::canonical::CanonicalError> {
                #(#claims)*
                ::core::result::Result::Ok(())
            }
        }
    }
}

/// Only what excludes the values of others is claimed; the other reducers combine what they are given.
fn claim(field: &Field) -> Option<TokenStream> {
    let Field { ident, name, .. } = field;
    let claim = match field.reducer {
        Reducer::Last | Reducer::Custom { ordered: false, .. } => quote!(claims.field(#name, value)?),
        Reducer::Merge => quote_spanned!(field.span()=> claims.entries(#name, value.iter())?),
        _ => return None,
    };
    Some(quote! {
        if let ::core::option::Option::Some(value) = &self.#ident {
            #claim;
        }
    })
}

fn serialize(input: &Input, delta: &Ident) -> TokenStream {
    let hapax = &input.hapax;
    let serde = quote!(#hapax::__private::serde);
    let idents = input.fields.iter().map(|field| &field.ident);
    let entries = input.fields.iter().map(|field| {
        let Field { ident, name, .. } = field;
        quote_spanned! {field.span()=>
            if let ::core::option::Option::Some(value) = &self.#ident {
                #serde::ser::SerializeMap::serialize_entry(&mut map, #name, value)?;
            }
        }
    });
    quote! {
        #[automatically_derived]
        #[allow(deprecated, unused_mut)]
        impl #serde::Serialize for #delta {
            fn serialize<S: #serde::Serializer>(
                &self,
                serializer: S,
            ) -> ::core::result::Result<S::Ok, S::Error> {
                let written = 0usize #(+ usize::from(self.#idents.is_some()))*;
                let mut map = serializer.serialize_map(::core::option::Option::Some(written))?;
                #(#entries)*
                #serde::ser::SerializeMap::end(map)
            }
        }
    }
}

fn deserialize(input: &Input, delta: &Ident) -> TokenStream {
    let serde = {
        let hapax = &input.hapax;
        quote!(#hapax::__private::serde)
    };
    let expecting = format!("a delta of `{}`: an object with the fields that were written", input.ident);
    let visit_map = visit_map(input, delta, &serde);
    quote! {
        #[automatically_derived]
        #[allow(deprecated, unused_mut)]
        impl<'de> #serde::Deserialize<'de> for #delta {
            fn deserialize<D: #serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::core::result::Result<Self, D::Error> {
                struct Visitor;
                impl<'de> #serde::de::Visitor<'de> for Visitor {
                    type Value = #delta;
                    fn expecting(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                        f.write_str(#expecting)
                    }
                    #visit_map
                }
                deserializer.deserialize_map(Visitor)
            }
        }
    }
}

fn visit_map(input: &Input, delta: &Ident, serde: &TokenStream) -> TokenStream {
    let hapax = &input.hapax;
    let names = input.fields.iter().map(|field| &field.name);
    let arms = input.fields.iter().map(|field| {
        let Field { ident, name, secret, .. } = field;
        quote_spanned! {field.span()=>
            #name => #hapax::__private::read(&mut delta.#ident, #name, #secret, &mut map)?,
        }
    });
    quote! {
        fn visit_map<A: #serde::de::MapAccess<'de>>(
            self,
            mut map: A,
        ) -> ::core::result::Result<#delta, A::Error> {
            let mut delta = <#delta as ::core::default::Default>::default();
            while let ::core::option::Option::Some(key) = map.next_key::<::std::string::String>()? {
                match key.as_str() {
                    #(#arms)*
                    unknown => {
                        return ::core::result::Result::Err(
                            <A::Error as #serde::de::Error>::unknown_field(unknown, &[#(#names),*]),
                        );
                    }
                }
            }
            ::core::result::Result::Ok(delta)
        }
    }
}

fn debug(input: &Input, delta: &Ident) -> TokenStream {
    let title = delta.to_string();
    let fields = input.fields.iter().map(|field| {
        let Field { ident, name, .. } = field;
        let shown = if field.secret { quote!(&::core::format_args!("<secret>")) } else { quote!(value) };
        quote_spanned! {field.span()=>
            if let ::core::option::Option::Some(value) = &self.#ident {
                shown.field(#name, #shown);
            }
        }
    });
    quote! {
        #[automatically_derived]
        #[allow(deprecated, unused_mut, unused_variables)]
        impl ::core::fmt::Debug for #delta {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                let mut shown = f.debug_struct(#title);
                #(#fields)*
                shown.finish()
            }
        }
    }
}
