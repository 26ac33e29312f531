{{- define "eldest.labels" -}}
{ app.kubernetes.io/name: {{ .Release.Name }} }
{{- end }}

{{- define "eldest.probes" -}}
# /live depends on the process alone. A probe that fails while etcd does not answer would kill every node, and
# its place in the queue with it, although a restart does not help.
startupProbe:
  httpGet: { path: /live, port: {{ . }} }
  periodSeconds: 1
  failureThreshold: 30
livenessProbe:
  httpGet: { path: /live, port: {{ . }} }
  periodSeconds: 10
  timeoutSeconds: 2
  failureThreshold: 3
# /ready: the node stands in the queue with a live lease. A rolling update waits for this before it stops the
# next node.
readinessProbe:
  httpGet: { path: /ready, port: {{ . }} }
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 1
{{- end }}

{{- define "eldest.security" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{- define "eldest.envFrom" -}}
envFrom:
  - configMapRef: { name: {{ .Release.Name }} }
{{- with .Values.etcd.secretName }}
  - secretRef: { name: {{ . }} }
{{- end }}
{{- end }}

{{- define "eldest.volumeMounts" -}}
{{- if or .Values.etcd.certificateSecretName (ne .Values.agent.mode "none") -}}
volumeMounts:
{{- if .Values.etcd.certificateSecretName }}
  - { name: etcd-certificates, mountPath: /etc/eldest/tls, readOnly: true }
{{- end }}
{{- if ne .Values.agent.mode "none" }}
  # To connect to a socket needs no writable volume, and a node cannot replace the socket.
  - { name: agent, mountPath: /run/eldest, readOnly: true }
{{- end }}
{{- end }}
{{- end }}

{{- define "eldest.volumes" -}}
{{- if or .Values.etcd.certificateSecretName (ne .Values.agent.mode "none") -}}
volumes:
{{- with .Values.etcd.certificateSecretName }}
  - name: etcd-certificates
    secret: { secretName: {{ . }} }
{{- end }}
{{- if eq .Values.agent.mode "host" }}
  - name: agent
    hostPath:
      # Each release has an agent of its own, and this directory.
      path: {{ .Values.agent.hostDirectory | default (printf "/run/eldest-%s-%s" .Release.Namespace .Release.Name) }}
      type: DirectoryOrCreate
{{- else if eq .Values.agent.mode "pod" }}
  - name: agent
    emptyDir: { medium: Memory, sizeLimit: 1Mi }
{{- end }}
{{- end }}
{{- end }}

{{- define "eldest.container.agent" -}}
{{- $agent := .Values.agent -}}
- name: agent
  image: {{ $agent.image }}
  imagePullPolicy: IfNotPresent
  args:
    - agent
    # Prometheus and the kubelet ask from outside of the pod.
    - --listen=0.0.0.0:{{ $agent.port }}
  {{- with .Values.etcd.secretName }}
  envFrom:
    - secretRef: { name: {{ . }} }
  {{- end }}
  env:
    - { name: ELDEST_ENDPOINTS, value: {{ join "," .Values.etcd.endpoints | quote }} }
    {{- if .Values.etcd.certificateSecretName }}
    - { name: ELDEST_CACERT, value: /etc/eldest/tls/ca.crt }
    - { name: ELDEST_CERT, value: /etc/eldest/tls/tls.crt }
    - { name: ELDEST_KEY, value: /etc/eldest/tls/tls.key }
    {{- end }}
    {{- range $name, $value := $agent.config }}
    - { name: {{ $name }}, value: {{ $value | quote }} }
    {{- end }}
  ports:
    - { name: agent, containerPort: {{ $agent.port }} }
  {{- if eq $agent.mode "host" }}
  # For the rollout. It is no liveness probe: an agent that waits for etcd must not lose its list of sessions.
  readinessProbe:
    httpGet: { path: /healthz, port: agent }
    periodSeconds: 5
    timeoutSeconds: 2
  {{- end }}
  resources: {{- toYaml $agent.resources | nindent 4 }}
  {{- include "eldest.security" . | nindent 2 }}
  volumeMounts:
    - { name: agent, mountPath: /run/eldest }
    {{- if .Values.etcd.certificateSecretName }}
    - { name: etcd-certificates, mountPath: /etc/eldest/tls, readOnly: true }
    {{- end }}
{{- end }}

{{- define "eldest.container.library" -}}
{{- $library := .Values.library -}}
- name: node
  image: {{ $library.image }}
  imagePullPolicy: IfNotPresent
  {{- include "eldest.envFrom" . | nindent 2 }}
  env:
    # The name of a pod is never used again, so no two candidates share one.
    - name: {{ $library.variables.name }}
      valueFrom: { fieldRef: { fieldPath: metadata.name } }
    - name: POD_IP
      valueFrom: { fieldRef: { fieldPath: status.podIP } }
    - name: {{ $library.variables.address }}
      value: http://$(POD_IP):{{ $library.port }}
    {{- if ne .Values.agent.mode "none" }}
    - name: {{ $library.variables.guard }}
      value: /run/eldest/agent.sock
    {{- end }}
  ports:
    - { name: http, containerPort: {{ $library.port }} }
  {{- include "eldest.probes" "http" | nindent 2 }}
  # No limit on the processor: a node that is throttled renews its lease late.
  resources: {{- toYaml $library.resources | nindent 4 }}
  {{- include "eldest.security" . | nindent 2 }}
  {{- with include "eldest.volumeMounts" . }}{{ . | nindent 2 }}{{ end }}
{{- end }}

{{- define "eldest.container.sidecar" -}}
{{- $sidecar := .Values.sidecar -}}
- name: eldest
  image: {{ $sidecar.image }}
  imagePullPolicy: IfNotPresent
  args:
    - serve
    {{- toYaml $sidecar.elections | nindent 4 }}
    # The kubelet asks from outside of the pod.
    - --listen=0.0.0.0:{{ $sidecar.port }}
  {{- include "eldest.envFrom" . | nindent 2 }}
  env:
    # The name of a pod is never used again, so no two candidates share one.
    - name: ELDEST_ID
      valueFrom: { fieldRef: { fieldPath: metadata.name } }
    - name: POD_IP
      valueFrom: { fieldRef: { fieldPath: status.podIP } }
    - name: ELDEST_ANNOUNCE
      value: address=http://$(POD_IP):{{ $sidecar.programPort }}
    {{- with $sidecar.challenges }}
    - { name: ELDEST_CHALLENGES, value: {{ . | quote }} }
    - { name: ELDEST_CHALLENGES_LISTEN, value: "0.0.0.0:{{ $sidecar.challengesPort }}" }
    - { name: ELDEST_CHALLENGES_ADVERTISE, value: "$(POD_IP):{{ $sidecar.challengesPort }}" }
    {{- end }}
    {{- with $sidecar.podLabel }}
    - { name: ELDEST_POD_LABEL, value: {{ . }} }
    - name: ELDEST_POD
      valueFrom: { fieldRef: { fieldPath: metadata.name } }
    {{- end }}
  ports:
    - { name: eldest, containerPort: {{ $sidecar.port }} }
    {{- if $sidecar.challenges }}
    - { name: challenges, containerPort: {{ $sidecar.challengesPort }} }
    {{- end }}
  {{- include "eldest.probes" "eldest" | nindent 2 }}
  # No limit on the processor: a node that is throttled renews its lease late.
  resources: {{- toYaml $sidecar.resources | nindent 4 }}
  {{- include "eldest.security" . | nindent 2 }}
  {{- with include "eldest.volumeMounts" . }}{{ . | nindent 2 }}{{ end }}
- {{ toYaml $sidecar.program | indent 2 | trim }}
{{- end }}

{{- /* Whether the pods label themselves. */}}
{{- define "eldest.labelled" -}}
{{- if and (eq .Values.mode "sidecar") .Values.sidecar.podLabel }}yes{{ end }}
{{- end }}
