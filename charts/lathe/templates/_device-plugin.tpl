{{/* The ConfigMap with named configurations; empty when there is none. */}}
{{- define "lathe.devicePlugin.config" -}}
{{- $config := .Values.devicePlugin.config -}}
{{- if and $config.name $config.map -}}
{{- fail "devicePlugin.config: give name (a ConfigMap that exists) or map (the configurations themselves), not both" -}}
{{- end -}}
{{- if and (gt (len $config.map) 1) (not $config.default) (not $config.fallbackStrategies) -}}
{{- fail "devicePlugin.config: which of several configurations counts on a node without the label? Name it in default" -}}
{{- end -}}
{{- if and (or $config.default $config.watch) (not $config.name) (not $config.map) -}}
{{- fail "devicePlugin.config: default and watch need configurations: give name or map" -}}
{{- end -}}
{{- if and $config.map $config.default (not (hasKey $config.map $config.default)) -}}
{{- fail (printf "devicePlugin.config: default is %q, which map does not have" $config.default) -}}
{{- end -}}
{{- range $name, $_ := $config.map -}}
{{- if not (regexMatch "^[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$" $name) -}}
{{- fail (printf "devicePlugin.config.map: %q cannot be the value of a node's label" $name) -}}
{{- end -}}
{{- end -}}
{{- if $config.map -}}
{{ printf "%s-configs" (include "lathe.name" (list . "nvidia-device-plugin-daemonset")) }}
{{- else -}}
{{ $config.name }}
{{- end -}}
{{- end -}}

{{/* A folder below the node's root, as the node sees it; `prefix` is where that root is. */}}
{{- define "lathe.below" -}}
{{- $prefix := index . 0 | trimSuffix "/" -}}
{{- printf "%s%s" $prefix (index . 1) | trimSuffix "/" | default "/" -}}
{{- end -}}

{{/* Where the configurations are, and which of them counts. */}}
{{- define "lathe.devicePlugin.configFlags" -}}
{{- $root := index . 0 -}}{{- $config := index . 1 -}}
{{- $part := $root.Values.devicePlugin -}}
{{- if $config }}
{{- if $part.config.watch }}
- --config-map={{ $root.Release.Namespace }}/{{ $config }}
{{- else }}
- --config-file-srcdir=/available-configs
{{- end }}
{{- with $part.config.default }}
- --default-config={{ . }}
{{- end }}
{{- with $part.config.fallbackStrategies }}
- --fallback-strategies={{ join "," . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Lets an account read Nodes, and the ConfigMap with the configurations where it is watched. */}}
{{- define "lathe.devicePlugin.reads" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $account := index . 2 -}}{{- $status := index . 3 -}}
{{- $name := include "lathe.name" (list $root $component) -}}
{{- $config := include "lathe.devicePlugin.config" $root -}}
# It reads its own Node: which configuration the label names, and when the MIG manager is at work.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ printf "%s-%s" $root.Release.Namespace $name }}
  labels:
    {{- include "lathe.labels" (list $root $component) | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [nodes]
    verbs: [get, list, watch]
  {{- if $status }}
  - apiGroups: [""]
    resources: [nodes/status]
    verbs: [patch]
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ printf "%s-%s" $root.Release.Namespace $name }}
  labels:
    {{- include "lathe.labels" (list $root $component) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ printf "%s-%s" $root.Release.Namespace $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ $root.Release.Namespace | quote }}
{{- if and $config $root.Values.devicePlugin.config.watch }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "lathe.labels" (list $root $component) | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [{{ $config }}]
    verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "lathe.labels" (list $root $component) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ $root.Release.Namespace | quote }}
{{- end }}
{{- end -}}

{{/* Flags from values. Those that are empty are not given, so that the configuration files decide. */}}
{{- define "lathe.devicePlugin.flags" -}}
{{- $root := index . 0 -}}{{- $config := index . 1 -}}{{- $health := index . 2 -}}
{{- $part := $root.Values.devicePlugin -}}
- --fail-on-init-error={{ $part.failOnInitError }}
{{- with $part.migStrategy }}
- --mig-strategy={{ . }}
{{- end }}
{{- with $part.deviceListStrategy }}
- --device-list-strategy={{ kindIs "slice" . | ternary (join "," .) . }}
{{- end }}
{{- with $part.deviceIDStrategy }}
- --device-id-strategy={{ . }}
{{- end }}
{{- with $part.sharedDevicesAllocationPolicy }}
- --shared-devices-allocation-policy={{ . }}
{{- end }}
{{- if $part.compatWithCPUManager }}
- --pass-device-specs=true
{{- end }}
{{- if $part.gdrcopyEnabled }}
- --gdrcopy-enabled=true
{{- end }}
{{- if $part.gdsEnabled }}
- --gds-enabled=true
{{- end }}
{{- if $part.mofedEnabled }}
- --mofed-enabled=true
{{- end }}
{{- if $part.imex.channel }}
- --imex-channel-ids=0
- --imex-required={{ $part.imex.required }}
{{- end }}
- --driver-root={{ include "lathe.below" (list $root.Values.nodeRoot $part.nvidiaDriverRoot) }}
- --driver-root-ctr-path={{ include "lathe.below" (list "/host" $part.nvidiaDriverRoot) }}
- --dev-root={{ include "lathe.below" (list $root.Values.nodeRoot $part.nvidiaDevRoot) }}
- --kubelet-socket=/var/lib/kubelet/device-plugins/kubelet.sock
- --pod-resources-socket=/var/lib/kubelet/pod-resources/kubelet.sock
- --cdi-dir=/var/run/cdi
{{- with $part.cdi.hookPath }}
- --nvidia-cdi-hook-path={{ . }}
{{- end }}
{{- if $part.mps.enabled }}
- --mps-root={{ $part.mps.root }}
{{- end }}
{{- with include "lathe.devicePlugin.configFlags" (list $root $config) }}
{{ . | trim }}
{{- end }}
{{- if $health }}
- --health-policy=/health/health.yaml
{{- end }}
- --node-condition={{ $part.nodeCondition }}
- --metrics-address=:{{ $part.metricsPort }}
{{- end -}}

{{/* What the NVIDIA runtime has to be told, so that a pod without privilege gets the driver and the devices. */}}
{{- define "lathe.driverFromRuntime" -}}
{{- if eq .deviceAccess "runtime" }}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: "compute,utility"}
{{- if ne .migStrategy "none" }}
- {name: NVIDIA_MIG_MONITOR_DEVICES, value: all}
{{- end }}
{{- end }}
{{- end -}}

{{/* Least privilege: what each choice needs is in docs/migrating-device-plugin.md. */}}
{{- define "lathe.devicePlugin.securityContext" -}}
{{- if eq .deviceAccess "privileged" -}}
privileged: true
{{- else if ne .migStrategy "none" -}}
# MIG devices and their events are shown to nobody else.
capabilities: {drop: [ALL], add: [SYS_ADMIN]}
{{- else -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}
readOnlyRootFilesystem: true
{{- end -}}
