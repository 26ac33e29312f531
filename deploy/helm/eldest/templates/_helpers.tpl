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
{{- if .Values.etcd.certificateSecretName -}}
volumeMounts:
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
  ports:
    - { name: eldest, containerPort: {{ $sidecar.port }} }
  {{- include "eldest.probes" "eldest" | nindent 2 }}
  # No limit on the processor: a node that is throttled renews its lease late.
  resources: {{- toYaml $sidecar.resources | nindent 4 }}
  {{- include "eldest.security" . | nindent 2 }}
  {{- with include "eldest.volumeMounts" . }}{{ . | nindent 2 }}{{ end }}
- {{ toYaml $sidecar.program | indent 2 | trim }}
{{- end }}
