//! What is written for a service: a trait with `#[grain]` on it. All the rest is the attribute's work, so that grains from
//! files and grains from traits cannot differ.

use std::collections::VecDeque;
use std::fmt::Write as _;

use prost_build::{Method, Service, ServiceGenerator};
use protox::prost_reflect::prost_types::FileDescriptorSet;

use crate::check::{Grains, REASONS};

/// Writes behind the messages of each package what belongs to grains.
#[derive(Debug)]
pub(crate) struct Writer {
    /// Where `synod-cluster` is found.
    cluster: String,
    grains: Grains,
    /// For each file that is still to be written, in their order, whether it has reasons of errors.
    have_reasons: VecDeque<bool>,
}

impl Writer {
    pub(crate) fn new(cluster: String, grains: Grains, descriptors: &FileDescriptorSet) -> Self {
        let has_reasons = |name: &str| grains.files_with_reasons.iter().any(|file| file == name);
        let have_reasons = descriptors.file.iter().map(|file| has_reasons(file.name())).collect();
        Self { cluster, grains, have_reasons }
    }

    fn write_service(&self, service: &Service, kind: &str, code: &mut String) -> std::fmt::Result {
        let cluster = &self.cluster;
        service.comments.append_with_indent(0, code);
        if service.comments.leading.is_empty() && service.comments.trailing.is_empty() {
            writeln!(code, "/// Grains of the service `{}`.", service.proto_name)?;
        }
        if service.options.deprecated() {
            code.push_str("#[deprecated]\n");
        }
        writeln!(code, "#[{cluster}::grain(kind = {kind:?}, crate = {cluster:?})]")?;
        writeln!(code, "pub trait {} {{", service.name)?;
        for method in &service.methods {
            self.write_method(method, code)?;
        }
        code.push_str("}\n");
        Ok(())
    }

    fn write_method(&self, method: &Method, code: &mut String) -> std::fmt::Result {
        method.comments.append_with_indent(1, code);
        if method.comments.leading.is_empty() && method.comments.trailing.is_empty() {
            writeln!(code, "    /// The call `{}`.", method.proto_name)?;
        }
        if method.options.deprecated() {
            code.push_str("    #[deprecated]\n");
        }
        let name = if RESERVED.contains(&method.name.as_str()) {
            format!("{}_", method.name)
        } else {
            method.name.clone()
        };
        let argument = match method.input_proto_type.as_str() {
            EMPTY => String::new(),
            _ => format!(", request: {}", method.input_type),
        };
        let (reply, cluster) = (&method.output_type, &self.cluster);
        writeln!(
            code,
            "    async fn {name}(&mut self{argument}) -> \
             ::core::result::Result<{reply}, {cluster}::grains::GrainError>;"
        )
    }

    fn write_reasons(&self, code: &mut String) -> std::fmt::Result {
        let cluster = &self.cluster;
        writeln!(
            code,
            "impl {REASONS} {{
    /// A grain's answer with this reason. Callers in Go know it by its name too.
    #[must_use]
    pub fn error(
        self,
        message: impl ::core::convert::Into<::std::string::String>,
    ) -> {cluster}::grains::GrainError {{
        {cluster}::grains::GrainError::new(self.as_str_name(), message)
    }}

    /// Whether a call failed because the grain answered with this reason.
    #[must_use]
    pub fn caused(self, error: &{cluster}::grains::CallError) -> bool {{
        matches!(error, {cluster}::grains::CallError::Grain(error) if error.reason == self.as_str_name())
    }}
}}"
        )
    }
}

impl ServiceGenerator for Writer {
    fn generate(&mut self, service: Service, code: &mut String) {
        let package =
            if service.package.is_empty() { String::new() } else { format!("{}.", service.package) };
        // Services of imported files belong to whoever compiles those.
        if let Some(kind) = self.grains.kinds.get(&format!("{package}{}", service.proto_name)) {
            self.write_service(&service, kind, code).unwrap_or_else(never);
        }
    }

    fn finalize(&mut self, code: &mut String) {
        if self.have_reasons.pop_front() == Some(true) {
            self.write_reasons(code).unwrap_or_else(never);
        }
    }
}

fn never(error: std::fmt::Error) {
    unreachable!("a string takes everything: {error}")
}

const EMPTY: &str = ".google.protobuf.Empty";

/// Names of methods that `…Grain` and `…Client` have anyway, which `#[grain]` refuses.
const RESERVED: [&str; 8] =
    ["activate", "deactivate", "receive", "timer", "with_timeout", "with_retry", "identity", "grain_ref"];

#[cfg(test)]
mod tests {
    use super::RESERVED;

    /// A macro crate can share its list with nobody, so there are two.
    #[test]
    fn reserved_names_are_those_that_the_attribute_refuses() {
        let (_, behind) =
            include_str!("../../macros/src/parse.rs").split_once("const RESERVED").expect("the list");
        let (list, _) = behind.split_once(';').and_then(|(_, list)| list.split_once(';')).expect("its end");
        let refused: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
        assert_eq!(refused, RESERVED);
    }
}
