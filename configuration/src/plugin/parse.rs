//! From the bytes of a file to a [`PluginFile`], or to the place that is wrong.

use std::path::{Path, PathBuf};

use serde_saphyr::Spanned;

use super::{
    DeviceFilter, Flags, GfdFlags, Imex, NamedPattern, Notice, Pattern, PluginFile, PluginFlags,
    Resources, Selector, SharedDevices, SharedResource, Sharing, SharingKind,
};
use crate::document::{self, DocumentError};
use crate::tree::{Reader, Section, Value, place_of};

impl PluginFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`DocumentError`] with file, line and column.
    pub fn read(path: &Path) -> Result<(Self, Vec<Notice>), DocumentError> {
        let bytes = document::read(path)?;
        Self::parse(&path.display().to_string(), &bytes)
    }

    /// Checks a document (YAML, or JSON as its subset). `file` is what errors and notices name.
    ///
    /// # Errors
    /// [`DocumentError`] with file, line and column.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<(Self, Vec<Notice>), DocumentError> {
        // The fallback "empty" of NVIDIA's config-manager is an empty file; as YAML that would be no document at all.
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Default::default());
        }
        let root: Spanned<Value> = document::parse(file, bytes)?;
        let mut reader = Reader::new(file);
        let parsed = whole(&mut reader, root)?;
        let notices = reader.notices().into_iter();
        let notices = notices.map(|(position, message)| Notice {
            file: file.to_owned(),
            position,
            message,
        });
        Ok((parsed, notices.collect()))
    }
}

fn whole(reader: &mut Reader<'_>, root: Spanned<Value>) -> Result<PluginFile, DocumentError> {
    let mut root = reader.section("", root)?;
    if let Some(version) = root.take("version") {
        let text = reader.text("version", &version)?;
        if !matches!(text.as_str(), "" | "v1") {
            let given: String = text.chars().take(40).collect();
            let message = format!("version {given:?} is not known: use v1");
            return Err(reader.wrong(&version, message));
        }
    }
    let parsed = PluginFile {
        flags: {
            let section = root.section(reader, "flags")?;
            flags(reader, section)?
        },
        devices: {
            let section = root.section(reader, "devices")?;
            devices(reader, section)?
        },
        resources: {
            let section = root.section(reader, "resources")?;
            resources(reader, section)?
        },
        sharing: {
            let section = root.section(reader, "sharing")?;
            sharing(reader, section)?
        },
        imex: {
            let section = root.section(reader, "imex")?;
            imex(reader, section)?
        },
    };
    root.end(reader);
    Ok(parsed)
}

fn flags(reader: &mut Reader<'_>, mut section: Section) -> Result<Flags, DocumentError> {
    let path = |text: Option<String>| text.map(PathBuf::from);
    let parsed = Flags {
        mig_strategy: section.parsed(reader, "migStrategy")?,
        fail_on_init_error: section.bool(reader, "failOnInitError")?,
        mps_root: path(section.text(reader, "mpsRoot")?),
        driver_root: path(section.text(reader, "nvidiaDriverRoot")?),
        dev_root: path(section.text(reader, "nvidiaDevRoot")?),
        gdrcopy: section.bool(reader, "gdrcopyEnabled")?,
        gds: section.bool(reader, "gdsEnabled")?,
        mofed: section.bool(reader, "mofedEnabled")?,
        use_node_feature_api: section.bool(reader, "useNodeFeatureAPI")?,
        discovery_strategy: section.parsed(reader, "deviceDiscoveryStrategy")?,
        plugin: {
            let section = section.section(reader, "plugin")?;
            plugin_flags(reader, section)?
        },
        gfd: {
            let section = section.section(reader, "gfd")?;
            gfd_flags(reader, section)?
        },
    };
    section.end(reader);
    Ok(parsed)
}

fn plugin_flags(
    reader: &mut Reader<'_>,
    mut section: Section,
) -> Result<PluginFlags, DocumentError> {
    let path = |text: Option<String>| text.map(PathBuf::from);
    let strategies_path = section.path("deviceListStrategy");
    let strategies = section.take("deviceListStrategy");
    let strategies = strategies.map(|value| {
        let words = match &value.value {
            Value::List(all) => all.clone(),
            _ => vec![value],
        };
        let mut strategies = Vec::new();
        for word in words {
            let text = reader.text(&strategies_path, &word)?;
            let strategy = text
                .parse()
                .map_err(|error| reader.wrong(&word, format!("{strategies_path}: {error}")))?;
            if !strategies.contains(&strategy) {
                strategies.push(strategy);
            }
        }
        Ok(strategies)
    });
    let parsed = PluginFlags {
        pass_device_specs: section.bool(reader, "passDeviceSpecs")?,
        device_list_strategies: strategies.transpose()?.filter(|all| !all.is_empty()),
        device_id_strategy: section.parsed(reader, "deviceIDStrategy")?,
        cdi_annotation_prefix: section.text(reader, "cdiAnnotationPrefix")?,
        cdi_hook_path: path(section.text(reader, "nvidiaCTKPath")?),
        container_driver_root: path(section.text(reader, "containerDriverRoot")?),
        allocation_policy: section.parsed(reader, "sharedDevicesAllocationPolicy")?,
    };
    section.end(reader);
    Ok(parsed)
}

fn gfd_flags(reader: &mut Reader<'_>, mut section: Section) -> Result<GfdFlags, DocumentError> {
    let path = |text: Option<String>| text.map(PathBuf::from);
    let parsed = GfdFlags {
        oneshot: section.bool(reader, "oneshot")?,
        no_timestamp: section.bool(reader, "noTimestamp")?,
        sleep_interval: section.text(reader, "sleepInterval")?,
        output_file: path(section.text(reader, "outputFile")?),
        machine_type_file: path(section.text(reader, "machineTypeFile")?),
    };
    section.end(reader);
    Ok(parsed)
}

fn devices(reader: &mut Reader<'_>, mut section: Section) -> Result<DeviceFilter, DocumentError> {
    let mut list = |key: &'static str| {
        let path = section.path(key);
        let entries = section.list(reader, key)?.into_iter();
        entries
            .map(|entry| selector(reader, &path, &entry))
            .collect::<Result<Vec<_>, _>>()
    };
    let parsed = DeviceFilter {
        include: list("include")?,
        exclude: list("exclude")?,
    };
    section.end(reader);
    Ok(parsed)
}

/// A device in a list; an index may be written as a number.
fn selector(
    reader: &Reader<'_>,
    path: &str,
    value: &Spanned<Value>,
) -> Result<Selector, DocumentError> {
    let text = match &value.value {
        Value::Integer(number) => number.to_string(),
        _ => reader.text(path, value)?,
    };
    text.parse()
        .map_err(|error| reader.wrong(value, format!("{path}: {error}")))
}

fn resources(reader: &mut Reader<'_>, mut section: Section) -> Result<Resources, DocumentError> {
    let parsed = Resources {
        gpus: patterns(reader, &mut section, "gpus")?,
        mig: patterns(reader, &mut section, "mig")?,
    };
    section.end(reader);
    Ok(parsed)
}

fn patterns(
    reader: &mut Reader<'_>,
    section: &mut Section,
    key: &'static str,
) -> Result<Vec<NamedPattern>, DocumentError> {
    let path = section.path(key);
    let mut all = Vec::new();
    for value in section.list(reader, key)? {
        let place = place_of(&value);
        let mut entry = reader.section(path.as_str(), value)?;
        let pattern = entry
            .text(reader, "pattern")?
            .ok_or_else(|| reader.wrong(&place, format!("{path}: pattern is missing")))?;
        let name = entry
            .parsed(reader, "name")?
            .ok_or_else(|| reader.wrong(&place, format!("{path}: name is missing")))?;
        entry.end(reader);
        all.push(NamedPattern {
            pattern: Pattern::new(pattern),
            name,
        });
    }
    Ok(all)
}

fn sharing(
    reader: &mut Reader<'_>,
    mut section: Section,
) -> Result<Option<Sharing>, DocumentError> {
    let time_slicing = section.take("timeSlicing");
    let mps = section.take("mps");
    section.end(reader);
    if let (Some(unused), Some(_)) = (&time_slicing, &mps) {
        reader.notice(
            unused,
            "sharing.timeSlicing has no effect beside sharing.mps",
        );
    }
    // Both are checked, whichever wins.
    let time_slicing = time_slicing
        .map(|value| replicated(reader, SharingKind::TimeSlicing, "timeSlicing", value))
        .transpose()?;
    let mps = mps
        .map(|value| replicated(reader, SharingKind::Mps, "mps", value))
        .transpose()?;
    Ok(mps.or(time_slicing))
}

fn replicated(
    reader: &mut Reader<'_>,
    kind: SharingKind,
    key: &str,
    value: Spanned<Value>,
) -> Result<Sharing, DocumentError> {
    let place = place_of(&value);
    let mut section = reader.section(format!("sharing.{key}"), value)?;
    let rename_by_default = section.bool(reader, "renameByDefault")?.unwrap_or(false);
    let fail_requests_greater_than_one = section
        .bool(reader, "failRequestsGreaterThanOne")?
        .unwrap_or(kind == SharingKind::Mps);
    let path = section.path("resources");
    let entries = section.list(reader, "resources")?;
    if entries.is_empty() {
        let message = format!("{path} is empty: name a resource with replicas, or leave {key} out");
        return Err(reader.wrong(&place, message));
    }
    let mut resources = Vec::new();
    for entry in entries {
        resources.push(shared_resource(reader, &path, entry, rename_by_default)?);
    }
    section.end(reader);
    Ok(Sharing {
        kind,
        rename_by_default,
        fail_requests_greater_than_one,
        resources,
    })
}

fn shared_resource(
    reader: &mut Reader<'_>,
    path: &str,
    value: Spanned<Value>,
    rename_by_default: bool,
) -> Result<SharedResource, DocumentError> {
    let place = place_of(&value);
    let mut entry = reader.section(path, value)?;
    let name: super::ResourceName = entry
        .parsed(reader, "name")?
        .ok_or_else(|| reader.wrong(&place, format!("{path}: name is missing")))?;
    let rename = entry.parsed(reader, "rename")?;
    if rename.is_none() && rename_by_default {
        name.shared()
            .map_err(|error| reader.wrong(&place, format!("{path}: {error}")))?;
    }
    let replicas = entry
        .take("replicas")
        .ok_or_else(|| reader.wrong(&place, format!("{path}: replicas is missing for {name}")))?;
    let count = reader.integer(&entry.path("replicas"), &replicas)?;
    let count = u32::try_from(count)
        .ok()
        .filter(|count| *count >= 2)
        .ok_or_else(|| {
            reader.wrong(
                &replicas,
                format!("{path}: {name} has {count} replicas: sharing needs at least 2"),
            )
        })?;
    let devices_path = entry.path("devices");
    let devices = match entry.take("devices") {
        None => SharedDevices::All,
        Some(value) => shared_devices(reader, &devices_path, value)?,
    };
    entry.end(reader);
    Ok(SharedResource {
        name,
        rename,
        devices,
        replicas: count,
    })
}

fn shared_devices(
    reader: &Reader<'_>,
    path: &str,
    value: Spanned<Value>,
) -> Result<SharedDevices, DocumentError> {
    let expected = || {
        reader.wrong(
            &value,
            format!("{path}: expected all, how many (at least 1), or a list of devices"),
        )
    };
    match &value.value {
        Value::Text(word) if word == "all" => Ok(SharedDevices::All),
        Value::Integer(count) => match u32::try_from(*count) {
            Ok(count) if count > 0 => Ok(SharedDevices::Count(count)),
            _ => Err(expected()),
        },
        Value::List(entries) if !entries.is_empty() => entries
            .iter()
            .map(|entry| selector(reader, path, entry))
            .collect::<Result<_, _>>()
            .map(SharedDevices::Selected),
        _ => Err(expected()),
    }
}

fn imex(reader: &mut Reader<'_>, mut section: Section) -> Result<Imex, DocumentError> {
    let path = section.path("channelIDs");
    let channel0 = section
        .take("channelIDs")
        .map(|value| {
            let place = place_of(&value);
            let ids = reader.list(&path, value)?;
            match ids.as_slice() {
                [] => Ok(false),
                [id] if reader.integer(&path, id)? == 0 => Ok(true),
                _ => Err(reader.wrong(&place, format!("{path}: only [] and [0] are possible"))),
            }
        })
        .transpose()?;
    let parsed = Imex {
        channel0,
        required: section.bool(reader, "required")?,
    };
    section.end(reader);
    Ok(parsed)
}
