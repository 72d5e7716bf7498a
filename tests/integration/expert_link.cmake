# The data plane in one process: expert workers and the trunk's link over both transports.
add_library(trunkline_mini_cluster STATIC mini_cluster.cc)
target_link_libraries(trunkline_mini_cluster PUBLIC trunkline_expert_worker trunkline_expert_link)

trunkline_test(expert_link_test
  SOURCES expert_link_faults_test.cc expert_link_test.cc
  LINK trunkline_mini_cluster trunkline_checkpoint_builder
  TIMEOUT 120)

trunkline_test(expert_cluster_test
  SOURCES expert_link_cluster_test.cc
  LINK trunkline_mini_cluster trunkline_checkpoint_builder trunkline_coordinator
  LABELS process TIMEOUT 180 SERIAL)
