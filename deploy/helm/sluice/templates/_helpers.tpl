{{- /* The labels of all objects. */ -}}
{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/component: service-proxy
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sluice.image" -}}
{{- $repository := required "image.repository: set it to the repository that you have pushed the image to" .Values.image.repository -}}
{{- if .Values.image.digest }}{{ $repository }}@{{ .Values.image.digest }}{{ else }}{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{- /* A document of a ConfigMap in the cluster, or an empty object. */ -}}
{{- define "sluice.document" -}}
{{- $object := lookup "v1" "ConfigMap" .namespace .name -}}
{{- dig "data" .key "{}" ($object | default dict) -}}
{{- end }}

{{- /* The configuration of all nodes: values, then what an earlier revision has, then what kube-proxy has. */ -}}
{{- define "sluice.config" -}}
{{- $own := deepCopy .Values.config -}}
{{- $last := include "sluice.document" (dict "namespace" .Release.Namespace "name" "sluice" "key" "sluice.yaml") | fromYaml -}}
{{- $from := dict "namespace" .Values.kubeProxy.namespace "name" .Values.kubeProxy.name -}}
{{- $peer := include "sluice.document" (merge (dict "key" "config.conf") $from) | fromYaml -}}
{{- $kubeconfig := include "sluice.document" (merge (dict "key" "kubeconfig.conf") $from) | fromYaml -}}
{{- $client := $own.clientConnection | default dict -}}
{{- if not (or $client.server $client.kubeconfig) -}}
  {{- $server := dig "clientConnection" "server" "" $last -}}
  {{- range $kubeconfig.clusters -}}
    {{- $server = $server | default (dig "cluster" "server" "" .) -}}
  {{- end -}}
  {{- $server = required "config.clientConnection.server: set it to an address of the API server that works without a Service proxy, such as https://192.0.2.10:6443. There is no ConfigMap of kube-proxy to read it from (helm template and GitOps controllers do not read the cluster)" $server -}}
  {{- $_ := set $own "clientConnection" (merge (dict "server" $server) $client) -}}
{{- end -}}
{{- $fields := list "clusterCIDR" "detectLocalMode" "detectLocal" -}}
{{- if not (or $own.clusterCIDR $own.detectLocalMode $own.detectLocal) -}}
  {{- $source := $peer -}}
  {{- if or $last.clusterCIDR $last.detectLocalMode $last.detectLocal }}{{ $source = $last }}{{ end -}}
  {{- range $fields -}}
    {{- $v := get $source . -}}
    {{- if and $v (not (eq (toJson $v) `{"bridgeInterface":"","interfaceNamePrefix":""}`)) }}{{ $_ := set $own . $v }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.kubectl.enabled (not $own.stateBindAddress) }}{{ $_ := set $own "stateBindAddress" "127.0.0.1:10252" }}{{ end -}}
{{- if and .Values.pluginPullSecret (not (dig "pluginImages" "dockerConfig" "" $own)) -}}
  {{- $_ := set $own "pluginImages" (merge (dict "dockerConfig" "/etc/sluice-pull/.dockerconfigjson") ($own.pluginImages | default dict)) -}}
{{- end -}}
{{- $defaults := dict "oomScoreAdj" -997 "logging" (dict "format" "json") "pluginCacheDir" "/run/sluice/plugins" -}}
{{- merge (dict "apiVersion" "sluice.dev/v1alpha1" "kind" "SluiceConfiguration") $own $defaults | toYaml -}}
{{- end }}
