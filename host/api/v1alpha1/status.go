package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeCounts are numbers of nodes.
type NodeCounts struct {
	// Desired is how many nodes should have it in force.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Desired int32 `json:"desired,omitempty"`
	// InForce is how many have.
	// +kubebuilder:validation:Minimum=0
	// +optional
	InForce int32 `json:"inForce,omitempty"`
	// Failed is on how many it fails.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// FallenBack is how many have fallen back because of a guard.
	// +kubebuilder:validation:Minimum=0
	// +optional
	FallenBack int32 `json:"fallenBack,omitempty"`
}

// Failure is a reason for which something is not in force on some nodes.
type Failure struct {
	// +kubebuilder:validation:MaxLength=64
	// +required
	Reason string `json:"reason"`
	// +kubebuilder:validation:Minimum=1
	// +required
	Count int32 `json:"count"`
	// Node is one of them.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Node string `json:"node"`
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
}

// Types of conditions.
const (
	ConditionAccepted   = "Accepted"   // the object is valid and may be used
	ConditionResolved   = "Resolved"   // of a ServicePlugin: the module has been read, and is signed as it must be
	ConditionProgrammed = "Programmed" // the nodes have it in force
	// These exist while they are true, as kstatus has it.
	ConditionReconciling = "Reconciling"
	ConditionStalled     = "Stalled"
)

// PolicyStatus is the status of a ServicePolicy or a ClusterServicePolicy. sluice's controller writes it.
type PolicyStatus struct {
	// ObservedGeneration is the generation that the status is about.
	// +kubebuilder:validation:Minimum=0
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// SpecVersion is the resource version from which on a node has read the object's spec.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	SpecVersion string `json:"specVersion,omitempty"`
	// ProgrammedNodes is on how many of the nodes the policy is in force, such as 48/50.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	ProgrammedNodes string `json:"programmedNodes,omitempty"`
	// +optional
	Nodes NodeCounts `json:"nodes,omitzero"`
	// Failures are the most frequent reasons for which nodes do not have the policy in force.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Failures []Failure `json:"failures,omitempty"`
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Ancestors are the targets of a ServicePolicy.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Ancestors []PolicyAncestor `json:"ancestors,omitempty"`
}

// PolicyAncestor is the status of a policy for one of its targets.
type PolicyAncestor struct {
	// +required
	AncestorRef TargetRef `json:"ancestorRef"`
	// +kubebuilder:validation:MaxLength=253
	// +required
	ControllerName string `json:"controllerName"`
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
