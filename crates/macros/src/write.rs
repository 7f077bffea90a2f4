//! What is written for a service: its name as a type, the trait to implement, the client, and the way between them.
//!
//! The code names nothing that its user might not have: all paths begin at `synod-cluster`, and what it needs of other
//! crates it finds in the hidden module `grains::generated` there.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::{Attribute, Type};

use crate::parse::{Method, Service};

/// All that a service becomes.
pub(crate) fn write(service: &Service) -> TokenStream {
    let parts = [write_marker(service), write_grain(service), write_client(service)];
    parts.into_iter().collect()
}

fn write_marker(service: &Service) -> TokenStream {
    let Service { attributes, visibility, name, kind, cluster, .. } = service;
    let (grain, client) = (grain_name(service), client_name(service));
    let codec = codec(service);
    let dispatch = service.methods.iter().zip(0_i32..).map(|(method, index)| {
        let Method { name: method_name, reply, .. } = method;
        let argument = argument_type(method);
        let request = method.argument.as_ref().map(|_| quote!(request));
        let read = quote! {
            #cluster::grains::generated::#codec::argument::<#argument>(argument)?
        };
        let read = match request {
            Some(_) => quote!(let request = #read;),
            None => quote!(#read;),
        };
        quote! {
            #index => {
                #read
                let reply = #grain::#method_name(&mut self.0, context, #request).await?;
                #cluster::grains::generated::#codec::reply::<#reply>(&reply)
            }
        }
    });
    let kind_doc =
        format!("Grains of the kind `{}`, for nodes to host: `factory` makes each of them.", kind.value());
    quote! {
        #(#attributes)*
        #[derive(Clone, Copy, Debug)]
        #visibility struct #name;

        // Whoever marks a service or a method as deprecated means its callers, not this code.
        #[allow(deprecated)]
        impl #cluster::grains::GrainService for #name {
            const KIND: &'static str = #kind;
            type Client = #client;

            fn client(grain: #cluster::grains::GrainRef) -> #client {
                #client { grain }
            }
        }

        #[allow(dead_code, deprecated)]
        impl #name {
            #[doc = #kind_doc]
            #visibility fn kind<__Grain: #grain>(
                factory: impl ::core::ops::Fn(&#cluster::grains::ClusterIdentity) -> __Grain
                    + ::core::marker::Send
                    + ::core::marker::Sync
                    + 'static,
            ) -> #cluster::grains::GrainKind {
                struct __Dispatch<__Grain>(__Grain);

                impl<__Grain: #grain> #cluster::grains::Grain for __Dispatch<__Grain> {
                    async fn call(
                        &mut self,
                        context: &mut #cluster::grains::GrainContext,
                        method: i32,
                        argument: #cluster::grains::generated::Bytes,
                    ) -> ::core::result::Result<#cluster::remote::Message, #cluster::grains::GrainError> {
                        match method {
                            #(#dispatch)*
                            other => ::core::result::Result::Err(
                                #cluster::grains::GrainError::unimplemented(other),
                            ),
                        }
                    }

                    async fn activate(
                        &mut self,
                        context: &mut #cluster::grains::GrainContext,
                        snapshot: ::core::option::Option<#cluster::grains::GrainSnapshot>,
                    ) -> ::core::result::Result<(), #cluster::grains::GrainError> {
                        #grain::activate(&mut self.0, context, snapshot).await
                    }

                    async fn deactivate(
                        &mut self,
                        context: &mut #cluster::grains::GrainContext,
                    ) -> ::core::option::Option<#cluster::grains::GrainSnapshot> {
                        #grain::deactivate(&mut self.0, context).await
                    }

                    async fn receive(
                        &mut self,
                        context: &mut #cluster::grains::GrainContext,
                        message: #cluster::remote::Message,
                    ) {
                        #grain::receive(&mut self.0, context, message).await;
                    }

                    async fn timer(&mut self, context: &mut #cluster::grains::GrainContext, name: &str) {
                        #grain::timer(&mut self.0, context, name).await;
                    }
                }

                #cluster::grains::GrainKind::new(
                    <Self as #cluster::grains::GrainService>::KIND,
                    move |identity| __Dispatch(factory(identity)),
                )
            }
        }
    }
}

fn write_grain(service: &Service) -> TokenStream {
    let Service { visibility, name, cluster, .. } = service;
    let grain = grain_name(service);
    let grain_doc =
        format!("A grain that answers the calls of [`{name}`]. Implement its methods as `async fn`.");
    let methods = service.methods.iter().map(|method| {
        let Method { attributes, name, output, .. } = method;
        let argument = write_parameter(method);
        quote! {
            #(#attributes)*
            fn #name(
                &mut self,
                context: &mut #cluster::grains::GrainContext,
                #argument
            ) -> impl ::core::future::Future<Output = #output> + ::core::marker::Send;
        }
    });
    quote! {
        #[doc = #grain_doc]
        #[allow(dead_code)]
        #visibility trait #grain: ::core::marker::Send + 'static {
            #(#methods)*

            /// The grain begins to run, from `snapshot` if there is one. An error refuses the activation.
            fn activate(
                &mut self,
                _context: &mut #cluster::grains::GrainContext,
                _snapshot: ::core::option::Option<#cluster::grains::GrainSnapshot>,
            ) -> impl ::core::future::Future<
                Output = ::core::result::Result<(), #cluster::grains::GrainError>,
            > + ::core::marker::Send {
                ::core::future::ready(::core::result::Result::Ok(()))
            }

            /// The grain stops. What it returns is given to its next activation, here or elsewhere.
            fn deactivate(
                &mut self,
                _context: &mut #cluster::grains::GrainContext,
            ) -> impl ::core::future::Future<
                Output = ::core::option::Option<#cluster::grains::GrainSnapshot>,
            > + ::core::marker::Send {
                ::core::future::ready(::core::option::Option::None)
            }

            /// A message that is no call, such as one that was published to a topic.
            fn receive(
                &mut self,
                _context: &mut #cluster::grains::GrainContext,
                _message: #cluster::remote::Message,
            ) -> impl ::core::future::Future<Output = ()> + ::core::marker::Send {
                ::core::future::ready(())
            }

            /// A timer of the grain is due.
            fn timer(
                &mut self,
                _context: &mut #cluster::grains::GrainContext,
                _name: &str,
            ) -> impl ::core::future::Future<Output = ()> + ::core::marker::Send {
                ::core::future::ready(())
            }
        }
    }
}

fn write_client(service: &Service) -> TokenStream {
    let Service { visibility, name, cluster, .. } = service;
    let client = client_name(service);
    let client_doc = format!("Calls one grain of [`{name}`], wherever it lives. Cheap to copy.");
    let codec = codec(service);
    let methods = service.methods.iter().zip(0_i32..).map(|(method, index)| {
        let Method { attributes, name, reply, .. } = method;
        let parameter = write_parameter(method);
        let argument = match &method.argument {
            Some((argument, _)) => argument.to_token_stream(),
            None => quote!(()),
        };
        let argument_type = argument_type(method);
        let summary = (!attributes.iter().any(is_doc)).then(|| format!("Calls `{name}`."));
        let summary = summary.map(|summary| quote!(#[doc = #summary]));
        quote! {
            #(#attributes)*
            #summary
            ///
            /// # Errors
            /// The error says whether the grain may have handled the call.
            #visibility async fn #name(
                &self,
                #parameter
            ) -> ::core::result::Result<#reply, #cluster::grains::CallError> {
                #cluster::grains::generated::#codec::call::<#argument_type, #reply>(
                    &self.grain, #index, &#argument,
                )
                .await
            }
        }
    });
    quote! {
        #[doc = #client_doc]
        #[derive(Clone, Debug)]
        #visibility struct #client {
            grain: #cluster::grains::GrainRef,
        }

        #[allow(dead_code)]
        impl #client {
            #(#methods)*

            /// The same grain, called with this much patience. Default 5 s.
            #[must_use]
            #visibility fn with_timeout(self, timeout: ::core::time::Duration) -> Self {
                Self { grain: self.grain.with_timeout(timeout) }
            }

            /// The same grain, with another answer to attempts that fail.
            #[must_use]
            #visibility fn with_retry(self, retry: #cluster::grains::RetryPolicy) -> Self {
                Self { grain: self.grain.with_retry(retry) }
            }

            /// Kind and identity of the grain.
            #[must_use]
            #visibility fn identity(&self) -> &#cluster::grains::ClusterIdentity {
                self.grain.identity()
            }

            /// The same grain without types, for calls by position.
            #[must_use]
            #visibility fn grain_ref(&self) -> &#cluster::grains::GrainRef {
                &self.grain
            }
        }
    }
}

fn write_parameter(method: &Method) -> Option<TokenStream> {
    method.argument.as_ref().map(|(name, ty)| quote!(#name: #ty))
}

fn argument_type(method: &Method) -> TokenStream {
    method.argument.as_ref().map_or_else(|| quote!(()), |(_, ty): &(Ident, Type)| ty.to_token_stream())
}

fn grain_name(service: &Service) -> Ident {
    format_ident!("{}Grain", service.name)
}

fn client_name(service: &Service) -> Ident {
    format_ident!("{}Client", service.name)
}

/// The module that knows how arguments and results become bytes.
fn codec(service: &Service) -> Ident {
    if service.is_serde { format_ident!("json") } else { format_ident!("protobuf") }
}

fn is_doc(attribute: &Attribute) -> bool {
    attribute.path().is_ident("doc")
}
