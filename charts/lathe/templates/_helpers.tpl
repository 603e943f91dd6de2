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
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
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
