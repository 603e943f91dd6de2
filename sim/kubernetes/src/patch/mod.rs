//! The four patch formats: each a pure function from an object and a patch to the patched object.

pub(crate) mod apply;
pub(crate) mod json_patch;
pub(crate) mod merge;
pub(crate) mod strategic;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::{apply, json_patch, merge, strategic};
    use crate::fields::schema;
    use crate::fields::set::FieldSet;
    use crate::strategy::drop_nulls;

    /// Names that mean something to a pod or to a patch, so that the walks go deep.
    fn name() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "metadata",
            "spec",
            "status",
            "labels",
            "finalizers",
            "ownerReferences",
            "uid",
            "containers",
            "name",
            "env",
            "ports",
            "containerPort",
            "protocol",
            "conditions",
            "type",
            "$patch",
            "$retainKeys",
            "$setElementOrder/containers",
            "$deleteFromPrimitiveList/finalizers",
            "replace",
            "delete",
        ])
        .prop_map(str::to_owned)
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..3_i64).prop_map(Value::from),
            name().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(name(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_patch_does_harm(target in any_json(), patch in any_json(), operations in any_json()) {
            let pod = schema::built_in("", "Pod");
            let mut merged = target.clone();
            strategic::merge(&mut merged, &patch, &pod).ok();
            json_patch::apply(&target, &operations).ok();
            let applied = apply::merge(&target, &patch, &pod);
            let mut rest = applied.clone();
            apply::remove(&mut rest, &FieldSet::of(&patch, &pod), &pod);
        }

        #[test]
        fn a_merge_patch_twice_is_the_patch_once(target in any_json(), patch in any_json()) {
            let mut once = target;
            merge::merge(&mut once, &patch);
            let mut twice = once.clone();
            merge::merge(&mut twice, &patch);
            prop_assert_eq!(once, twice);
        }

        #[test]
        fn an_apply_twice_is_the_apply_once(target in any_json(), config in any_json()) {
            let pod = schema::built_in("", "Pod");
            let mut config = config;
            drop_nulls(&mut config);
            let once = apply::merge(&target, &config, &pod);
            prop_assert_eq!(apply::merge(&once, &config, &pod), once);
        }
    }

    // What the random test above meets only now and then.
    #[test]
    fn an_apply_with_items_without_a_key_or_with_one_twice_changes_nothing_the_second_time() {
        let pod = schema::built_in("", "Pod");
        for containers in [
            json!([null]),
            json!([null, null]),
            json!([[]]),
            json!([{}]),
            json!([{"env": [7]}]),
            json!([{"name": "a", "tty": true}, {"name": "a", "tty": false}]),
            json!([{"name": "a", "env": [{"name": "b"}]}, {"name": "a", "env": 1}]),
        ] {
            let config = json!({"spec": {"containers": containers}});
            for live in [
                json!(null),
                json!({}),
                json!({"spec": []}),
                json!({"spec": {"containers": 1}}),
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            ] {
                let once = apply::merge(&live, &config, &pod);
                assert_eq!(apply::merge(&once, &config, &pod), once, "{live} {config}");
            }
        }
    }

    // The examples of RFC 7386, appendix A.
    #[test]
    fn merge_patches_of_the_standard() {
        for (target, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            let mut merged = target.clone();
            merge::merge(&mut merged, &patch);
            assert_eq!(merged, expected, "{target} with {patch}");
        }
    }
}
