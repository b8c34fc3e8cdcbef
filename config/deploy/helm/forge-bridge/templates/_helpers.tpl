{{- define "forge-bridge.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "forge-bridge.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "forge-bridge.labels" -}}
{{ include "forge-bridge.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "forge-bridge.metadata" -}}
name: {{ include "forge-bridge.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "forge-bridge.labels" . | nindent 2 }}
{{- end }}

{{- define "forge-bridge.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if .root.Values.tls.secret }}
  scheme: HTTPS
  {{- end }}
{{- end }}
