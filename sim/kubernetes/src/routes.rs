//! From an HTTP request to a verb, and from its result to an answer. Knows paths and media types.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request};
use serde_json::{Value, json};

use crate::answer::{self, Answer};
use crate::api::Api;
use crate::body;
use crate::discovery;
use crate::error::{ApiError, Cause};
use crate::input::{Call, body, delete_options, patch_format, read_call, unwrapped, write_options};
use crate::query::{self, percent_decode};
use crate::render::Render;
use crate::server::Record;
use crate::verbs::delete;
use crate::verbs::patch::{self, Format};
use crate::verbs::watch::Watcher;
use crate::verbs::{Target, WriteOptions, create, pods, read, update};

/// Answers one request.
pub(crate) async fn handle(
    api: Arc<Api>,
    request: Request<Incoming>,
) -> Result<Answer, std::io::Error> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or("").to_owned();
    let verdict = api.faults.judge(method.as_str(), &path);
    if !verdict.delay.is_zero() {
        tokio::select! {
            () = api.stop.cancelled() => {}
            () = tokio::time::sleep(verdict.delay) => {}
        }
    }
    let result = match verdict.answer {
        Some(error) => Err(error),
        None => match read_call(&api, request).await {
            Ok(call) => route(&api, &path, call),
            Err(error) => Err(error),
        },
    };
    let answer = result.unwrap_or_else(|error| answer::error(&error));
    api.record(Record {
        method: method.as_str().to_owned(),
        path,
        query,
        status: answer.status().as_u16(),
    });
    if verdict.lose_answer {
        return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
    }
    Ok(answer)
}

fn route(api: &Arc<Api>, path: &str, call: Call) -> Result<Answer, ApiError> {
    let segments: Vec<String> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| percent_decode(segment, false))
        .collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let resources = || api.registry.all();
    let version = api.options.version.as_str();
    let found = match segments.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => return Ok(answer::text(200, "ok")),
        ["version"] => Some(discovery::version(version)),
        ["api"] if query::wants_aggregated(&call.accept) => {
            return Ok(answer::aggregated(&discovery::aggregated(
                &resources(),
                true,
            )));
        }
        ["apis"] if query::wants_aggregated(&call.accept) => {
            return Ok(answer::aggregated(&discovery::aggregated(
                &resources(),
                false,
            )));
        }
        ["api"] => Some(discovery::api_versions()),
        ["apis"] => Some(discovery::group_list(&resources())),
        ["apis", group] => discovery::group(&resources(), group),
        ["api", version] => discovery::resource_list(&resources(), "", version),
        ["apis", group, version] => discovery::resource_list(&resources(), group, version),
        ["openapi", "v3"] => Some(discovery::openapi_index(&resources())),
        ["openapi", "v3", rest @ ..] => {
            discovery::openapi_document(&resources(), &rest.join("/"), version)
        }
        ["api", version, rest @ ..] => return resource(api, "", version, rest, call),
        ["apis", group, version, rest @ ..] => return resource(api, group, version, rest, call),
        _ => None,
    };
    match found {
        Some(_) if call.method != Method::GET => Err(ApiError::method_not_allowed()),
        Some(object) => Ok(answer::json(200, &object)),
        None => Ok(answer::text(404, "404 page not found\n")),
    }
}

fn resource(
    api: &Arc<Api>,
    group: &str,
    version: &str,
    rest: &[&str],
    call: Call,
) -> Result<Answer, ApiError> {
    // `namespaces/NAME/status` is about a namespace; any other third segment is a resource in it.
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() && rest != ["status"] => {
            (Some((*namespace).to_owned()), rest)
        }
        rest => (None, rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource] => (*plural, *name, *subresource),
        _ => return Ok(answer::text(404, "404 page not found\n")),
    };
    if let Some(kind) = discovery::review(group, version, plural) {
        return review(api, kind, &call);
    }
    let Some(resource) = api.registry.find(group, version, plural) else {
        let known = api
            .registry
            .all()
            .iter()
            .any(|resource| resource.group == group && resource.version == version);
        if known {
            return Err(ApiError::no_such_path());
        }
        return Ok(answer::text(404, "404 page not found\n"));
    };
    if resource.namespaced != namespace.is_some() && !(namespace.is_none() && name.is_empty()) {
        return Ok(answer::text(404, "404 page not found\n"));
    }
    let known = subresource.is_empty()
        || resource
            .subresources()
            .iter()
            .any(|(found, _)| *found == subresource);
    if !known {
        return Err(ApiError::no_such_path());
    }
    let target = Target {
        resource,
        namespace,
        name: name.to_owned(),
        subresource: subresource.to_owned(),
    };
    let deprecated = deprecation(&target);
    let mut answer = dispatch(api, target, &call)?;
    if let Some(text) = deprecated {
        answer::warn(&mut answer, &text);
    }
    Ok(answer)
}

/// What a client is told that uses a version on its way out.
fn deprecation(target: &Target) -> Option<String> {
    let resource = &target.resource;
    (!resource.deprecated.is_empty()).then(|| {
        format!(
            "{} {} is {}",
            resource.api_version(),
            resource.kind,
            resource.deprecated
        )
    })
}

fn review(api: &Api, kind: &str, call: &Call) -> Result<Answer, ApiError> {
    if call.method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let answer = api.options.reviews.answer(kind, body(call)?, &call.bearer);
    Ok(answer::json(201, &answer))
}

fn dispatch(api: &Arc<Api>, target: Target, call: &Call) -> Result<Answer, ApiError> {
    match target.subresource.as_str() {
        "binding" | "eviction" => pod_action(api, &target, call),
        _ if target.name.is_empty() => collection(api, target, call),
        _ => object(api, target, call),
    }
}

fn pod_action(api: &Arc<Api>, target: &Target, call: &Call) -> Result<Answer, ApiError> {
    if call.method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let options = write_options(call, "CreateOptions")?;
    let body = body(call)?;
    if target.subresource == "binding" {
        api.write(&target.resource, |state| {
            pods::bind(state, target, &body, &options)
        })?;
    } else {
        let outcome = api.write(&target.resource, |state| {
            pods::evict(state, target, &body, options.dry_run)
        })?;
        api.follow_deletion(target, &outcome);
    }
    let success = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(answer::json(201, &success))
}

fn collection(api: &Arc<Api>, target: Target, call: &Call) -> Result<Answer, ApiError> {
    let resource = Arc::clone(&target.resource);
    let render = Render::new(query::form(&call.accept, &call.query));
    match call.method {
        Method::GET if call.query.flag("watch") => watch(api, target, call),
        Method::GET if !call.query.get("sendInitialEvents").is_empty() => {
            let detail = "sendInitialEvents is forbidden for list";
            let cause = Cause::forbidden("sendInitialEvents", detail);
            Err(read::list_options(&[cause]))
        }
        Method::GET => {
            let options = call.query.list_options(&resource)?;
            let page = read::list(&api.store.read(), &target, &options)?;
            Ok(answer::json(200, &render.list(&resource, page)))
        }
        Method::POST if resource.namespaced && target.namespace.is_none() => {
            Err(ApiError::method_not_allowed())
        }
        Method::POST => {
            let options = write_options(call, "CreateOptions")?;
            let body = unwrapped(&resource, body(call))?;
            let created = api.write(&resource, |state| {
                create::create(state, &target, body, &options)
            })?;
            let mut answer = answer::json(201, &render.object(&resource, created));
            tell(&mut answer, &options);
            Ok(answer)
        }
        // Whole collections are deleted in one namespace at a time, namespaces one by one.
        Method::DELETE
            if resource.namespaced && target.namespace.is_none()
                || resource.is("", "namespaces") =>
        {
            Err(ApiError::method_not_allowed())
        }
        Method::DELETE => {
            let options = call.query.list_options(&resource)?;
            let deletion = delete_options(call)?;
            let page = read::list(&api.store.read(), &target, &options)?;
            for item in &page.items {
                let mut one = target.clone();
                one.name = crate::json::text(item, &["metadata", "name"]).to_owned();
                if resource.namespaced {
                    one.namespace =
                        Some(crate::json::text(item, &["metadata", "namespace"]).to_owned());
                }
                let outcome = api.write(&resource, |state| delete::delete(state, &one, &deletion));
                match outcome {
                    Ok(outcome) => api.follow_deletion(&one, &outcome),
                    // Somebody else deleted it first.
                    Err(error) if error.code == 404 => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(answer::json(200, &render.list(&resource, page)))
        }
        _ => Err(ApiError::method_not_allowed()),
    }
}

fn object(api: &Arc<Api>, target: Target, call: &Call) -> Result<Answer, ApiError> {
    let resource = Arc::clone(&target.resource);
    let render = Render::new(query::form(&call.accept, &call.query));
    let written = |(object, created): (Value, bool), options: &WriteOptions| {
        let code = if created { 201 } else { 200 };
        let mut answer = answer::json(code, &render.object(&resource, object));
        tell(&mut answer, options);
        Ok(answer)
    };
    match call.method {
        Method::GET if call.query.flag("watch") => watch(api, target, call),
        Method::GET => {
            let version = call.query.get("resourceVersion");
            let object = read::get(&api.store.read(), &target, version)?;
            Ok(answer::json(200, &render.object(&resource, object)))
        }
        Method::PUT => {
            let options = write_options(call, "UpdateOptions")?;
            let body = unwrapped(&resource, body(call))?;
            let result = api.write(&resource, |state| {
                update::replace(state, &target, body, &options)
            })?;
            written(result, &options)
        }
        Method::PATCH => {
            let format = patch_format(&resource, &call.content_type)?;
            let options = call.query.write_options(
                &call.user_agent,
                "PatchOptions",
                format == Format::Apply,
            )?;
            let body = match (format, body::parse(&call.body)) {
                (_, Ok(body)) => body,
                (Format::Json, Err(_)) => {
                    return Err(ApiError::bad_request("invalid JSON patch"));
                }
                (_, Err(why)) => return Err(ApiError::bad_request(why)),
            };
            let result = api.write(&resource, |state| {
                patch::patch(state, &target, format, &body, &options)
            })?;
            written(result, &options)
        }
        Method::DELETE if target.subresource.is_empty() => {
            let options = delete_options(call)?;
            let outcome = api.write(&resource, |state| delete::delete(state, &target, &options))?;
            api.follow_deletion(&target, &outcome);
            let object = delete::answer(&resource, &outcome);
            let is_status = object["kind"] == "Status";
            let object = if is_status {
                object
            } else {
                render.object(&resource, object)
            };
            Ok(answer::json(200, &object))
        }
        _ => Err(ApiError::method_not_allowed()),
    }
}

fn watch(api: &Arc<Api>, target: Target, call: &Call) -> Result<Answer, ApiError> {
    let resource = Arc::clone(&target.resource);
    let options = call
        .query
        .watch_options(&resource, api.options.bookmark_interval)?;
    let watcher = Watcher::start(
        Arc::clone(&api.store),
        target,
        options,
        Render::new(query::form(&call.accept, &call.query)),
        api.faults.breaks(),
        api.stop.clone(),
    )?;
    Ok(answer::stream(watcher))
}

/// Puts what a write has to say beside its result into the headers.
fn tell(answer: &mut Answer, options: &WriteOptions) {
    for text in options.warnings.borrow().iter() {
        answer::warn(answer, text);
    }
}
