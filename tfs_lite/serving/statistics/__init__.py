"""What Triton's statistics, trace and log calls show."""
