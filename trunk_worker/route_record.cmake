# Route records and their file, without a worker: what replay and the fuzz target link.
trunkline_library(route_record
  SOURCES route_record.cc route_record_file.cc route_record_policy.cc route_record_reading.cc
  PUBLIC trunkline_common trunkline_routing trunkline_proto
  PRIVATE PkgConfig::zstd)
