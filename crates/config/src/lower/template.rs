//! Texts with variables, and what is wrong with them.

use crate::findings::{Reported, quoted};
use crate::nearest::nearest;
use crate::reader::Node;
use sluicegate_edit::{Scope, Template, TemplateError, TemplateFault, Variable};
use sluicegate_redact::names_a_secret;

/// Variables in one value.
const MAX_VARIABLES: usize = 16;

/// The template that a value is.
fn template(node: &Node<'_>, text: &str, scope: Scope<'_>) -> Result<Template, Reported> {
    match Template::parse(text, scope) {
        Ok(template) if template.variables().count() > MAX_VARIABLES => {
            let message = format!("{} names {} variables", field_text(node, text), template.variables().count());
            Err(node.error(message, format!("it may name {MAX_VARIABLES}")))
        }
        Ok(template) => Ok(template),
        Err(_) if names_a_secret(node.label()) => {
            let names = Variable::names(scope).collect::<Vec<_>>().join(", ");
            let help = format!("here there are {names}; as text a name in braces is written {{{{NAME}}}}");
            Err(node.error("this names a variable that is none", help))
        }
        Err(error) => Err(node.error(format!("{error} in {}", quoted(text)), remedy(&error, scope))),
    }
}

/// A template as the value of the field that the node is called by.
pub(super) fn field_value(node: &Node<'_>, scope: Scope<'_>) -> Result<Template, Reported> {
    let text = node.string("a text in quotes", "\"value\" or \"{client_ip}\"")?;
    if text.trim() != text || text.chars().any(|character| character.is_control() && character != '\t') {
        let help = "a value has no control characters, and no blanks at its ends";
        let shown = if names_a_secret(node.label()) { String::new() } else { format!(" {}", quoted(text)) };
        return Err(node.error(format!("invalid header value{shown}"), help));
    }
    template(node, text, scope)
}

/// The text of the field or setting that the node is called by, as a message names it: not if it may be a secret.
pub(crate) fn field_text(node: &Node<'_>, text: &str) -> String {
    if names_a_secret(node.label()) { "this".to_owned() } else { quoted(text) }
}

/// The remedy for a name that is no variable.
pub(super) fn remedy(error: &TemplateError, scope: Scope<'_>) -> String {
    let name = &error.name;
    let near = nearest(name, Variable::names(scope));
    match (error.fault, near) {
        (TemplateFault::Unknown, Some(near)) => {
            format!("did you mean {{{near}}}? As text it is written {{{{{name}}}}}")
        }
        (TemplateFault::Unknown | TemplateFault::NotHere, _) => {
            format!(
                "here there are {}; as text it is written {{{{{name}}}}}",
                Variable::names(scope).collect::<Vec<_>>().join(", ")
            )
        }
        (TemplateFault::NoGroup, _) => match scope {
            Scope::Target(Some(regex)) => match regex.group_count() {
                0 => "the regex has no groups: put in parentheses what you mean".to_owned(),
                groups => format!("the regex has the groups {{1}} to {{{groups}}}"),
            },
            Scope::Target(None) => "groups are those of a regex: give one".to_owned(),
            Scope::Request | Scope::Response | Scope::Refusal => {
                format!("groups of a regex are for rewrite and redirect; as text it is written {{{{{name}}}}}")
            }
        },
        (TemplateFault::Name, _) => "write {header:x-api-key} or {cookie:NAME}".to_owned(),
    }
}

/// A template as a path or an address to go to.
pub(super) fn target(node: &Node<'_>, text: &str, scope: Scope<'_>) -> Option<Template> {
    if let Some(character) = text.chars().find(|character| !character.is_ascii_graphic() || *character == '\\') {
        let help = "escape what no address can hold: a space is %20";
        node.error(format!("{} holds {character:?}", quoted(text)), help);
        return None;
    }
    template(node, text, scope).ok()
}
