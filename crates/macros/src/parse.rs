//! What a service says, checked: whatever `#[grain]` cannot make a grain of is an error at the place that says it.

use proc_macro2::Ident;
use quote::ToTokens;
use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Generics, ItemTrait, LitStr, Pat, Path, PathArguments, Result,
    ReturnType, Signature, Token, TraitItem, TraitItemFn, Type, Visibility,
};

/// What stands in the parentheses of the attribute.
#[derive(Default)]
pub(crate) struct Options {
    kind: Option<LitStr>,
    cluster: Option<Path>,
    is_serde: bool,
}

impl Options {
    pub(crate) fn read(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        if meta.path.is_ident("kind") {
            let kind: LitStr = meta.value()?.parse()?;
            // Such kinds would split identities of grains at the wrong place.
            if kind.value().is_empty() || kind.value().contains('/') {
                return Err(Error::new(kind.span(), "a kind is neither empty nor has it a `/`"));
            }
            self.kind = Some(kind);
        } else if meta.path.is_ident("crate") {
            self.cluster = Some(meta.value()?.parse::<LitStr>()?.parse_with(Path::parse_mod_style)?);
        } else if meta.path.is_ident("serde") {
            self.is_serde = true;
        } else {
            return Err(meta.error("grains have the options `kind = \"…\"`, `serde` and `crate = \"…\"`"));
        }
        Ok(())
    }
}

/// A service that a grain can be made of.
pub(crate) struct Service {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) name: Ident,
    pub(crate) kind: LitStr,
    /// Where `synod-cluster` is found.
    pub(crate) cluster: Path,
    pub(crate) is_serde: bool,
    /// In the order of their positions.
    pub(crate) methods: Vec<Method>,
}

/// One call.
pub(crate) struct Method {
    /// Documentation and the like, for all that is made of the method.
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) name: Ident,
    /// Name and type; `None` for the empty message.
    pub(crate) argument: Option<(Ident, Type)>,
    /// The type of the whole result, as written.
    pub(crate) output: Type,
    /// The type of a good answer.
    pub(crate) reply: Type,
}

impl Service {
    /// # Errors
    /// All that is wrong with it.
    pub(crate) fn new(item: ItemTrait, options: Options, cluster: &str) -> Result<Self> {
        let mut problems = Problems::default();
        if let Some(token) = &item.unsafety {
            problems.add(token, "a grain is not unsafe");
        }
        if !item.generics.params.is_empty() || item.generics.where_clause.is_some() {
            problems
                .add(&item.generics, "a service of grains is not generic: its name is known to all nodes");
        }
        if !item.supertraits.is_empty() {
            problems.add(
                &item.supertraits,
                "a service of grains has no supertraits: callers see only its methods",
            );
        }
        let mut methods: Vec<Method> = Vec::new();
        for inner in item.items {
            let TraitItem::Fn(function) = inner else {
                problems.add(&inner, "a service of grains has only methods: nothing else can be called");
                continue;
            };
            let name = &function.sig.ident;
            if methods.iter().any(|method| method.name == *name) {
                let problem = format!("`{name}` is there already: each position belongs to one method");
                problems.add(name, &problem);
            }
            match Method::new(function) {
                Ok(method) => methods.push(method),
                Err(error) => problems.join(error),
            }
        }
        if let Some(problems) = problems.0 {
            return Err(problems);
        }
        let kind = options.kind.unwrap_or_else(|| LitStr::new(&plain(&item.ident), item.ident.span()));
        let cluster = match options.cluster {
            Some(cluster) => cluster,
            None => syn::parse_str(cluster)?,
        };
        Ok(Self {
            attributes: item.attrs,
            visibility: item.vis,
            name: item.ident,
            kind,
            cluster,
            is_serde: options.is_serde,
            methods,
        })
    }
}

impl Method {
    fn new(function: TraitItemFn) -> Result<Self> {
        let mut problems = Problems::default();
        let signature = &function.sig;
        let name = plain(&signature.ident);
        if RESERVED.contains(&name.as_str()) {
            let problem =
                format!("`{name}` is a method that every grain or its client has; choose another name");
            problems.add(&signature.ident, &problem);
        }
        for attribute in &function.attrs {
            if !ATTRIBUTES.iter().any(|known| attribute.path().is_ident(known)) {
                // One that hides a method would move those behind it to other positions.
                problems.add(
                    attribute,
                    "a method of a grain takes only `doc`, `deprecated`, `allow` and `expect`",
                );
            }
        }
        check_qualifiers(signature, &mut problems);
        if let Some(body) = &function.default {
            problems.add(body, "a call has no body here: implement the grain's trait instead");
        }
        let argument = parse_argument(signature, &mut problems);
        let answer = parse_output(signature, &mut problems);
        match (problems.0, answer) {
            (None, Some((output, reply))) => {
                Ok(Self { attributes: function.attrs, name: function.sig.ident, argument, output, reply })
            }
            (Some(problems), _) => Err(problems),
            (None, None) => Err(Error::new(signature.ident.span(), RESULT)),
        }
    }
}

fn check_qualifiers(signature: &Signature, problems: &mut Problems) {
    if signature.asyncness.is_none() {
        problems.add(signature.fn_token, "a call is `async`: its answer may come from another node");
    }
    if let Some(token) = &signature.constness {
        problems.add(token, "a call is not `const`");
    }
    if let Some(token) = &signature.unsafety {
        problems.add(token, "a call is not `unsafe`");
    }
    if let Some(abi) = &signature.abi {
        problems.add(abi, "a call has no ABI");
    }
    check_generics(&signature.generics, "a call is not generic: its types are known to all nodes", problems);
}

fn check_generics(generics: &Generics, problem: &str, problems: &mut Problems) {
    if !generics.params.is_empty() {
        problems.add(generics, problem);
    }
    if let Some(clause) = &generics.where_clause {
        problems.add(clause, problem);
    }
}

fn parse_argument(signature: &Signature, problems: &mut Problems) -> Option<(Ident, Type)> {
    const RECEIVER: &str = "a call begins with `&mut self`: a grain handles one at a time";
    let mut inputs = signature.inputs.iter();
    match inputs.next() {
        Some(FnArg::Receiver(receiver))
            if receiver.reference.as_ref().is_some_and(|(_, lifetime)| lifetime.is_none())
                && receiver.mutability.is_some()
                && receiver.colon_token.is_none() => {}
        Some(other) => problems.add(other, RECEIVER),
        None => problems.add(&signature.ident, RECEIVER),
    }
    if let Some(surplus) = signature.inputs.iter().filter(|input| matches!(input, FnArg::Typed(_))).nth(1) {
        problems.add(surplus, "a call has one argument or none: make a message of all of them");
    }
    let FnArg::Typed(argument) = inputs.next()? else { return None };
    check_owned(&argument.ty, problems);
    let Pat::Ident(pattern) = &*argument.pat else {
        problems.add(&argument.pat, "an argument has a plain name here");
        return None;
    };
    if pattern.by_ref.is_some() || pattern.mutability.is_some() || pattern.subpat.is_some() {
        problems.add(pattern, "an argument has a plain name here");
    }
    Some((pattern.ident.clone(), (*argument.ty).clone()))
}

/// `Result<Reply, GrainError>` and the `Reply` in it.
fn parse_output(signature: &Signature, problems: &mut Problems) -> Option<(Type, Type)> {
    let ReturnType::Type(_, output) = &signature.output else {
        problems.add(&signature.ident, RESULT);
        return None;
    };
    let Some(reply) = reply_of(output) else {
        problems.add(output, RESULT);
        return None;
    };
    check_owned(reply, problems);
    Some(((**output).clone(), reply.clone()))
}

fn reply_of(output: &Type) -> Option<&Type> {
    let Type::Path(path) = output else { return None };
    let result = path.path.segments.last().filter(|last| last.ident == "Result")?;
    let PathArguments::AngleBracketed(arguments) = &result.arguments else { return None };
    let arguments: &Punctuated<_, Token![,]> = &arguments.args;
    match (arguments.get(0)?, arguments.get(1)?) {
        (GenericArgument::Type(reply), GenericArgument::Type(Type::Path(error))) if arguments.len() == 2 => {
            error.path.segments.last().is_some_and(|last| last.ident == "GrainError").then_some(reply)
        }
        _ => None,
    }
}

/// What travels is one message that belongs to whoever receives it.
fn check_owned(ty: &Type, problems: &mut Problems) {
    match ty {
        Type::ImplTrait(_) => {
            problems.add(ty, "a call carries one message of a named type; nothing is streamed");
        }
        Type::Reference(_) => {
            problems.add(ty, "a message belongs to whoever receives it: take it without `&`");
        }
        _ => {}
    }
}

/// A name without the `r#` of those that are keywords.
fn plain(name: &Ident) -> String {
    syn::ext::IdentExt::unraw(name).to_string()
}

/// Everything that is wrong, reported at once.
#[derive(Default)]
struct Problems(Option<Error>);

impl Problems {
    fn add(&mut self, place: impl ToTokens, problem: &str) {
        self.join(Error::new_spanned(place, problem));
    }

    fn join(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
    }
}

const RESULT: &str = "a call returns `Result<_, GrainError>`";

/// Names of the methods that `…Grain` and `…Client` have anyway.
const RESERVED: [&str; 8] =
    ["activate", "deactivate", "receive", "timer", "with_timeout", "with_retry", "identity", "grain_ref"];

/// Attributes that may stand at a method.
const ATTRIBUTES: [&str; 4] = ["doc", "deprecated", "allow", "expect"];
