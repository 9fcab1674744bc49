package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServicePlugin registers a plugin, so that policies can use it by name: where its module is, what it may take, and who may use
// it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=spl,categories=sluice
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="sluice.dev/schema=1"
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source.type`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.loadedNodes`
// +kubebuilder:printcolumn:name="Digest",type=string,priority=1,JSONPath=`.status.digest`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="a plugin's name has at most 63 characters"
type ServicePlugin struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +required
	Spec ServicePluginSpec `json:"spec"`
	// +optional
	Status ServicePluginStatus `json:"status,omitzero"`
}

// ServicePluginList is a list of ServicePlugins.
//
// +kubebuilder:object:root=true
type ServicePluginList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ServicePlugin `json:"items"`
}

// ServicePluginSpec describes a plugin.
//
// +kubebuilder:validation:XValidation:rule="!has(self.verify) || self.source.type == 'Image'",message="only images have signatures; the digest says what a file must be"
type ServicePluginSpec struct {
	// Source is where the module is.
	// +required
	Source PluginSource `json:"source"`
	// Verify is who must have signed the image.
	// +optional
	Verify *PluginVerify `json:"verify,omitempty"`
	// Limits bound what the plugin takes on a node.
	// +optional
	Limits PluginLimits `json:"limits,omitzero"`
	// Isolation is which Services share an instance of the plugin: all, or those of each namespace.
	// +kubebuilder:validation:Enum=Shared;Namespace
	// +kubebuilder:default=Shared
	// +optional
	Isolation string `json:"isolation,omitempty"`
	// Use grants the plugin to ServicePolicies. Without it, only ClusterServicePolicies can use the plugin.
	// +optional
	Use *PluginUse `json:"use,omitempty"`
}

// SourceType is where a module is.
//
// +kubebuilder:validation:Enum=Image;File;Bundled
type SourceType string

// Values of SourceType.
const (
	ImageSource   SourceType = "Image"   // in a registry
	FileSource    SourceType = "File"    // in a file of each node
	BundledSource SourceType = "Bundled" // in sluice's own image
)

// PluginSource is where a module is: the member that type names.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'Image' ? has(self.image) : !has(self.image)",message="image is required with type Image, and forbidden otherwise"
// +kubebuilder:validation:XValidation:rule="self.type == 'File' ? has(self.file) : !has(self.file)",message="file is required with type File, and forbidden otherwise"
// +kubebuilder:validation:XValidation:rule="self.type == 'Bundled' ? has(self.bundled) : !has(self.bundled)",message="bundled is required with type Bundled, and forbidden otherwise"
type PluginSource struct {
	// +required
	Type SourceType `json:"type"`
	// +optional
	Image *ImageModule `json:"image,omitempty"`
	// +optional
	File *FileModule `json:"file,omitempty"`
	// +optional
	Bundled *BundledModule `json:"bundled,omitempty"`
}

// ImageModule is a module in an OCI registry.
type ImageModule struct {
	// Ref names the image by the digest of its manifest, such as ghcr.io/acme/spill@sha256:….
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-zA-Z0-9.:_/-]+@sha256:[0-9a-f]{64}$')",message="must be REGISTRY/NAME@sha256:… with the digest of the manifest, in lower case"
	// +required
	Ref string `json:"ref"`
}

// FileModule is a module in a file that each node has, for example by a volume of the DaemonSet.
type FileModule struct {
	// Path is absolute.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="must be an absolute path"
	// +required
	Path string `json:"path"`
	// Digest is that of the module. Nodes whose file differs do not load it.
	// +kubebuilder:validation:MaxLength=71
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +optional
	Digest string `json:"digest,omitempty"`
}

// BundledModule is a plugin that sluice's image contains.
type BundledModule struct {
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
}

// PluginVerify is who must have signed an image.
type PluginVerify struct {
	// Key is a public key in PEM, ed25519 or ECDSA P-256.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('-----BEGIN PUBLIC KEY-----')",message="must be a public key in PEM: -----BEGIN PUBLIC KEY-----"
	// +required
	Key string `json:"key"`
}

// PluginLimits bound a plugin on a node.
type PluginLimits struct {
	// MemoryMiB is that of an instance.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=64
	// +optional
	MemoryMiB int32 `json:"memoryMiB,omitempty"`
	// Instances is how many there are at the same time.
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=256
	// +kubebuilder:default=16
	// +optional
	Instances int32 `json:"instances,omitempty"`
}

// PluginUse grants a plugin to ServicePolicies.
type PluginUse struct {
	// Namespaces are those whose ServicePolicies may use the plugin; empty: all.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// Settings are the fields that ServicePolicies may set; empty: none. List only fields whose every valid value you would
	// accept.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Settings []string `json:"settings,omitempty"`
}

// ServicePluginStatus is written by sluice's controller.
type ServicePluginStatus struct {
	// ObservedGeneration is the generation that the status is about.
	// +kubebuilder:validation:Minimum=0
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// SpecVersion is the resource version from which on a node has read the object's spec.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	SpecVersion string `json:"specVersion,omitempty"`
	// Digest is that of the module that nodes have loaded.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Digest string `json:"digest,omitempty"`
	// Settings are the fields of the plugin's settings, one a line: name, type, range, default, and what it is for.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=atomic
	// +optional
	Settings []string `json:"settings,omitempty"`
	// Needs are the inputs that the module asks for.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=317
	// +listType=set
	// +optional
	Needs []string `json:"needs,omitempty"`
	// LoadedNodes is on how many of the nodes the plugin is loaded, such as 48/50.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	LoadedNodes string `json:"loadedNodes,omitempty"`
	// +optional
	Nodes NodeCounts `json:"nodes,omitzero"`
	// Failures are the most frequent reasons for which nodes do not load the plugin.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Failures []Failure `json:"failures,omitempty"`
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
