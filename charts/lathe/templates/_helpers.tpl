{{/* Name of a part's objects: NVIDIA's names, since people look for them. */}}
{{- define "lathe.name" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- if $root.Values.namePrefix }}{{ printf "%s-%s" $root.Values.namePrefix $name | trunc 63 | trimSuffix "-" }}{{ else }}{{ $name }}{{ end -}}
{{- end -}}

{{- define "lathe.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* What the pods of a part are selected by; never changes between releases of the chart. */}}
{{- define "lathe.selector" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
app: {{ include "lathe.name" (list $root $name) }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
{{- end -}}

{{- define "lathe.labels" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{ include "lathe.selector" (list $root $name) }}
app.kubernetes.io/name: lathe
app.kubernetes.io/component: {{ $name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where a part's pods run: what the part says, else what is said for all. */}}
{{- define "lathe.placement" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $part.nodeSelector | default $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.affinity | default $root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations | default $root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Environment that every part has. */}}
{{- define "lathe.environment" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
- name: LATHE_ROOT
  value: /host
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: LATHE_LOG
  value: {{ $root.Values.logLevel | quote }}
{{- with $part.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The node's file system. Mounts that come later on the node (a driver container's, for one) must show here too. */}}
{{- define "lathe.rootVolume" -}}
- name: node-root
  hostPath: {path: {{ .Values.nodeRoot | quote }}, type: Directory}
{{- end -}}

{{/* The folder of the kubelet's socket that tells which pod holds which device. */}}
{{- define "lathe.podResourcesVolume" -}}
- name: pod-resources
  hostPath: {path: {{ printf "%s/pod-resources" (.Values.kubeletRoot | trimSuffix "/") | quote }}, type: DirectoryOrCreate}
{{- end -}}

{{/* RBAC has no rule for "the node the pod runs on": an admission policy that holds an account to it. */}}
{{- define "lathe.ownNodeOnly" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $account := index . 2 -}}
{{- $name := printf "%s-%s" $root.Release.Namespace (include "lathe.name" (list $root $component)) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "lathe.labels" (list $root $component) | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: {{ index . 4 }}
        operations: [UPDATE]
  matchConditions:
    - name: this-account
      expression: request.userInfo.username == "system:serviceaccount:{{ $root.Release.Namespace }}:{{ $account }}"
  variables:
    # A pod's token names the node that the pod runs on.
    - name: nodes
      expression: >-
        has(request.userInfo.extra) && "authentication.kubernetes.io/node-name" in request.userInfo.extra
        ? request.userInfo.extra["authentication.kubernetes.io/node-name"] : []
  validations:
    - expression: object.metadata.name in variables.nodes
      message: the {{ index . 3 }} may write the node that it runs on, and no other
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "lathe.labels" (list $root $component) | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end -}}

{{/* Lets an account write Events about Nodes, which are kept in the namespace `default`. */}}
{{- define "lathe.nodeEvents" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $account := index . 2 -}}
{{- $name := printf "%s-%s" $root.Release.Namespace (include "lathe.name" (list $root $component)) -}}
# Events about a Node are kept in the namespace `default`.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: default
  labels:
    {{- include "lathe.labels" (list $root $component) | nindent 4 }}
rules:
  - apiGroups: [events.k8s.io]
    resources: [events]
    verbs: [create, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: default
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
{{- end -}}
